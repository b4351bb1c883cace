#!/usr/bin/env python3
"""Writes small video files, made by ffmpeg, for tests/fuzz_video.c to start from: every container that is read, and
every codec of it that ffmpeg can encode. A file whose encoder this ffmpeg lacks is left out by name.

    tools/make_video_seeds.py FOLDER
    build/asan/tests/fuzz_video -runs 1000000 -seed 1 FOLDER"""
import os
import subprocess
import sys

# The encoders' texts about themselves are left out of the streams.
H264 = ["-c:v", "libx264", "-preset", "ultrafast", "-crf", "40", "-bsf:v", "filter_units=remove_types=6"]
H264_B = ["-c:v", "libx264", "-crf", "40", "-bf", "2", "-x264-params", "b-adapt=0", "-bsf:v", "filter_units=remove_types=6"]
HEVC = ["-c:v", "libx265", "-x265-params", "log-level=none:info=0:ctu=16:min-cu-size=8", "-crf", "45"]
VP9 = ["-c:v", "libvpx-vp9", "-crf", "60", "-b:v", "0"]
AV1 = ["-c:v", "libaom-av1", "-cpu-used", "8", "-crf", "60", "-b:v", "0"]
MPEG4 = ["-c:v", "mpeg4", "-q:v", "31"]
MPEG2 = ["-c:v", "mpeg2video", "-q:v", "31"]
MJPEG = ["-c:v", "mjpeg", "-q:v", "31", "-pix_fmt", "yuvj420p", "-huffman", "0"]
SOUND = ["-ar", "22050", "-ac", "1", "-b:a", "24k", "-shortest"]
EXACT = ["-fflags", "+bitexact", "-flags:v", "+bitexact", "-map_metadata", "-1"]
LEAN = {".avi": ["-reserve_index_space", "100"], ".wmv": ["-packet_size", "400"], ".asf": ["-packet_size", "400"],
        ".mpg": ["-packetsize", "512"]}
FIELDS = ["-flags:v", "+bitexact+ilme+ildct"]
LARGE = ["-c:v", "rawvideo", "-pix_fmt", "bgr24", "-frames:v", "2"]      # more than the reader buffers: it seeks
SMALL, CIF = "32x32", "128x96"           # H.263 has few sizes
CLIPS = {                                # name: size, what ffmpeg is told
    "h264.mp4": (SMALL, H264_B),
    "h264_444.mp4": (SMALL, H264 + ["-pix_fmt", "yuv444p"]),
    "h264_fields.mp4": (SMALL, H264_B + FIELDS),
    "h264_parts.mp4": (SMALL, H264 + ["-g", "2", "-movflags", "frag_keyframe+empty_moov+default_base_moof"]),
    "h264_parts.mov": (SMALL, H264 + ["-g", "2", "-movflags", "frag_every_frame+empty_moov"]),
    "h264_head.mp4": (SMALL, H264_B + ["-movflags", "+faststart"]),
    "h264.mkv": (SMALL, H264_B),
    "h264.ts": (SMALL, H264),
    "h264.flv": (SMALL, H264),
    "h264.avi": (SMALL, H264),
    "h264.m2ts": (SMALL, H264),
    "h264_sound.mp4": (SMALL, SOUND + H264 + ["-c:a", "aac"]),
    "hevc.mp4": (SMALL, HEVC + ["-pix_fmt", "yuv420p"]),
    "hevc_10.mkv": (SMALL, HEVC + ["-pix_fmt", "yuv420p10le"]),
    "hevc.ts": (SMALL, HEVC + ["-pix_fmt", "yuv420p"]),
    "vp8.webm": (SMALL, ["-c:v", "libvpx", "-b:v", "5k"]),
    "vp8_alpha.webm": (SMALL, ["-c:v", "libvpx", "-b:v", "5k", "-pix_fmt", "yuva420p", "-auto-alt-ref", "0"]),
    "vp9.webm": (SMALL, VP9),
    "vp9.mp4": (SMALL, VP9),
    "vp9_12.webm": (SMALL, VP9 + ["-pix_fmt", "yuv444p12le"]),
    "vp9_live.webm": (SMALL, VP9 + ["-live", "1"]),
    "av1.mp4": (SMALL, AV1),
    "av1.webm": (SMALL, AV1),
    "av1_10.mkv": (SMALL, AV1 + ["-pix_fmt", "yuv420p10le"]),
    "mpeg4.mp4": (SMALL, MPEG4),
    "mpeg4_b.avi": (SMALL, MPEG4 + ["-bf", "2", "-flags:v", "+bitexact+mv4+qpel"]),
    "mpeg4_fields.avi": (SMALL, MPEG4 + FIELDS),
    "mpeg1.mpg": (SMALL, ["-c:v", "mpeg1video", "-q:v", "31", "-r", "25"]),
    "mpeg2.mpg": (SMALL, MPEG2 + ["-f", "vob"]),
    "mpeg2.ts": (SMALL, MPEG2),
    "mpeg2_fields.ts": (SMALL, MPEG2 + ["-bf", "2"] + FIELDS),
    "mpeg2_sound.ts": (SMALL, SOUND + MPEG2 + ["-c:a", "mp2"]),
    "mjpeg.mov": (SMALL, MJPEG),
    "mjpeg.avi": (SMALL, MJPEG),
    "h263.3gp": (CIF, ["-c:v", "h263", "-q:v", "31"]),
    "theora.ogv": (SMALL, ["-c:v", "libtheora", "-q:v", "0"]),
    "theora_sound.ogv": (SMALL, SOUND + ["-c:v", "libtheora", "-q:v", "0", "-c:a", "flac"]),
    "vp8.ogv": (SMALL, ["-c:v", "libvpx", "-b:v", "5k"]),
    "flv1.flv": (SMALL, ["-c:v", "flv1", "-q:v", "31"]),
    "flv1_sound.flv": (SMALL, SOUND + ["-c:v", "flv1", "-q:v", "31", "-c:a", "adpcm_swf"]),
    "wmv1.wmv": (SMALL, ["-c:v", "wmv1", "-q:v", "31"]),
    "wmv2.wmv": (SMALL, ["-c:v", "wmv2", "-q:v", "31"]),
    "wmv2_sound.asf": (SMALL, SOUND + ["-c:v", "wmv2", "-q:v", "31", "-c:a", "wmav2"]),
    "msmpeg4.asf": (SMALL, ["-c:v", "msmpeg4", "-q:v", "31"]),
    "msmpeg4v2.avi": (SMALL, ["-c:v", "msmpeg4v2", "-q:v", "31"]),
    "prores.mov": (SMALL, ["-c:v", "prores_ks", "-profile:v", "0", "-qscale:v", "60"]),
    "prores_alpha.mov": (SMALL, ["-c:v", "prores_ks", "-profile:v", "4", "-pix_fmt", "yuva444p10le", "-qscale:v", "60"]),
    "dnxhr.mov": ("256x120", ["-c:v", "dnxhd", "-profile:v", "dnxhr_lb", "-frames:v", "1"]),
    "ffv1.mkv": (SMALL, ["-c:v", "ffv1", "-level", "1"]),
    "ffv1_slices.mkv": (SMALL, ["-c:v", "ffv1", "-level", "3", "-slices", "4", "-slicecrc", "1", "-pix_fmt", "bgr0"]),
    "huffyuv.avi": ("16x16", ["-c:v", "huffyuv", "-pix_fmt", "yuv422p"]),
    "ffvhuff.mkv": ("16x16", ["-c:v", "ffvhuff", "-pix_fmt", "bgra"]),
    "raw.avi": ("16x8", ["-c:v", "rawvideo", "-pix_fmt", "bgr24"]),
    "raw_planes.mkv": ("16x8", ["-c:v", "rawvideo", "-pix_fmt", "yuv420p"]),
    "palette.mov": ("16x8", ["-c:v", "rawvideo", "-pix_fmt", "pal8"]),
    "large.mov": (CIF, LARGE),
    "large.mkv": (CIF, ["-c:v", "rawvideo", "-pix_fmt", "yuv420p"]),
    "large.avi": (CIF, LARGE),
    "cinepak.avi": (SMALL, ["-c:v", "cinepak"]),
    "cinepak.mov": (SMALL, ["-c:v", "cinepak"]),
    "png.mov": ("16x16", ["-c:v", "png", "-pix_fmt", "rgba64be"]),
    "gif.gif": (SMALL, []),
    "gif.mkv": ("16x16", ["-c:v", "gif"]),
}
# Files made of finished ones without encoding: the file, options before and after its name.
REMUX = {
    "turned_90.mp4": ("h264.mp4", [], ["-metadata:s:v", "rotate=90"]),
    "turned_180.mov": ("mjpeg.mov", [], ["-metadata:s:v", "rotate=180"]),
    "turned_270.mkv": ("h264.mkv", [], ["-metadata:s:v", "rotate=270"]),
    "edited.mp4": ("h264.mp4", ["-ss", "0.1"], []),
    "stamps.mkv": ("mpeg4_b.avi", ["-fflags", "+genpts"], ["-output_ts_offset", "1000"]),
}
# Bytes of finished files one after the other: streams that change size and codec on their way.
JOINED = {"sizes.mpg": ["mpeg2.mpg", "mpeg1.mpg"], "codecs.ts": ["h264.ts", "mpeg2.ts", "hevc.ts"]}
# Files that end early: the file and the share of it that is kept.
CUT = {"cut.mp4": ("h264_head.mp4", 0.95), "cut.avi": ("mjpeg.avi", 0.8), "cut.mpg": ("mpeg2.mpg", 0.9),
       "cut.gif": ("gif.gif", 0.97)}


def ffmpeg(path, *args):
    """False, and no file, where ffmpeg cannot."""
    done = subprocess.run(["ffmpeg", "-v", "error", "-y", *args, path], capture_output=True, text=True)
    if done.returncode == 0:
        return True
    print(f"skip {path}: {done.stderr.strip().splitlines()[-1]}")
    if os.path.exists(path):
        os.remove(path)
    return False


def encode(path, size, args):
    name, kind = os.path.splitext(os.path.basename(path))
    sound = ["-f", "lavfi", "-i", "sine=duration=0.15"] if name.endswith("_sound") else []
    frames = "6" if kind == ".ts" else "4"        # ffmpeg wants more than ten packets of 188 bytes
    ffmpeg(path, "-f", "lavfi", "-i", f"testsrc2=size={size}:rate=25", *sound, "-frames:v", frames, *EXACT,
           *LEAN.get(kind, []), *args)


def read(path):
    if not os.path.exists(path):
        return b""
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    for name, (size, args) in CLIPS.items():
        encode(f"{out}/{name}", size, args)
    for name, (source, before, after) in REMUX.items():
        ffmpeg(f"{out}/{name}", *before, "-i", f"{out}/{source}", "-c", "copy", *EXACT, *after)
    for name, parts in JOINED.items():
        write(f"{out}/{name}", b"".join(read(f"{out}/{part}") for part in parts))
    for name, (source, share) in CUT.items():
        data = read(f"{out}/{source}")
        write(f"{out}/{name}", data[:int(len(data) * share)])


if len(sys.argv) != 2:
    sys.exit(__doc__)
main()
