/* base/file_version.h -- the format version of every file that treb writes and reads again. A reader refuses
 * any other version, so a change that an older build would misread raises the number
 * here, and nowhere else. */
#ifndef BASE_FILE_VERSION_H
#define BASE_FILE_VERSION_H

enum {
    MANIFEST_VERSION      = 1, /* MANIFEST.json of a checkpoint: "format" */
    SHARDS_VERSION        = 1, /* state/rank-R/runs.json: "format" */
    LORA_STATE_VERSION    = 1, /* state/adapter.json: "format" */
    TRAINER_STATE_VERSION = 1, /* trainer_state.json: "format" */
    LOADER_STATE_VERSION  = 1, /* data loader in trainer_state.json: "version" */
    HARDWARE_VERSION      = 2, /* measured hardware profile: "format"; 1 is read too */
    BIN_VERSION           = 1, /* header of a .bin dataset */
    INDEX_CACHE_VERSION   = 2, /* header of a file of tables of a dataset in the cache folder */
    PROFILE_VERSION       = 1, /* profile.json: "format" */
};

#endif
