/* tests/test_launch.c -- parts of treb launch: topology and bindings of invented hosts, output of ranks,
 * hosts, and the layout for another number of ranks. tests/launch.sh starts real ranks. */
#define _GNU_SOURCE
#include "base/folder.h"
#include "launch/binding.h"
#include "launch/hosts.h"
#include "launch/output.h"
#include "launch/words.h"
#include "lab.h"
#include "plan/relayout.h"

#include <stdarg.h>

static char root[] = "/tmp/treb-launch-XXXXXX";

__attribute__((format(printf, 2, 3))) static void put(const char *text, const char *fmt, ...)
{
    char    path[512];
    va_list args;
    int     n = snprintf(path, sizeof path, "%s/", root);
    va_start(args, fmt);
    vsnprintf(path + n, sizeof path - (size_t)n, fmt, args);
    va_end(args);
    char *slash = strrchr(path, '/');
    *slash = 0;
    EXPECT_OK(folder_make(path));
    *slash = '/';
    EXPECT_OK(file_write(path, text, strlen(text)));
}

/* 2 NUMA nodes of 4 cores with 2 hardware threads: CPUs i and i + 8 are one core. 4 GPUs, the first two on
 * node 1; the third has no device file, as in a container. */
static void make_host(void)
{
    char text[64];
    for (int i = 0; i < 16; i++) {
        snprintf(text, sizeof text, "%d,%d\n", i % 8, i % 8 + 8);
        put(text, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
    }
    put("0-1\n", "sys/devices/system/node/online");
    put("0-3,8-11\n", "sys/devices/system/node/node0/cpulist");
    put("4-7,12-15\n", "sys/devices/system/node/node1/cpulist");
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "Model: X\nDevice Minor: \t %d\n", i);
        put(text, "proc/driver/nvidia/gpus/0000:%dA:00.0/information", i + 1);
        put(i < 2 ? "1\n" : i < 3 ? "0\n" : "-1\n", "sys/bus/pci/devices/0000:%da:00.0/numa_node", i + 1);
        if (i != 2) put("", "dev/nvidia%d", i);
    }
}

static void all_cpus(cpu_set_t *set) { cpu_list_parse(set, "0-15"); }

static void lists(void)
{
    static const char *const same[] = { "0", "0-3", "0,2,4-7,1023", "" };
    cpu_set_t set;
    char text[128];
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        cpu_list_parse(&set, same[i]);
        cpu_list_text(text, sizeof text, &set);
        EXPECT(!strcmp(text, same[i]), "%s instead of %s", text, same[i]);
    }
    cpu_list_parse(&set, "7-99999\n");
    EXPECT(CPU_COUNT(&set) == CPU_SETSIZE - 7, "a list beyond the end has %d", CPU_COUNT(&set));
}

static void cores_and_gpus(void)
{
    Topology  t;
    cpu_set_t set;
    all_cpus(&set);
    topology_read(&t, root, &set);
    EXPECT(t.cores == 8, "%d cores", t.cores);
    EXPECT(t.core_of[3] == 3 && t.core_of[11] == 3 && t.core_of[16] == -1, "hardware threads of core 3");
    EXPECT(t.core[4].node == 1 && t.core[3].node == 0, "nodes of cores 3 and 4");
    EXPECT(t.gpus == 3, "%d GPUs", t.gpus);
    EXPECT(t.gpu[0].node == 1 && t.gpu[1].node == 1 && t.gpu[2].node == NUMA_UNKNOWN, "nodes of GPUs");
    topology_limit_gpus(&t, "1,0");
    EXPECT(t.gpus == 2 && !strcmp(t.gpu[0].bus, "0000:2a:00.0"), "CUDA_VISIBLE_DEVICES=1,0: %s",
           t.gpu[0].bus);
    topology_limit_gpus(&t, "GPU-42,7");
    EXPECT(t.gpus == 1 && t.gpu[0].node == NUMA_UNKNOWN, "%d GPUs by name", t.gpus);
    topology_limit_gpus(&t, "");
    EXPECT(t.gpus == 0, "an empty list leaves %d", t.gpus);
}

static void expect_binding(const Topology *t, int local, int size, const char *want)
{
    RankBinding b;
    char    text[320];
    binding_find(&b, t, local, size);
    binding_text(text, sizeof text, &b);
    EXPECT(!strcmp(text, want), "rank %d of %d: %s; expected %s", local, size, text, want);
}

static void cores_of_ranks(void)
{
    Topology  t;
    cpu_set_t set;
    all_cpus(&set);
    topology_read(&t, root, &set);
    t.gpus = 0;
    expect_binding(&t, 0, 1, "CPUs 0-15, NUMA node several, GPU none, 8 threads");
    expect_binding(&t, 1, 2, "CPUs 4-7,12-15, NUMA node 1, GPU none, 4 threads");
    expect_binding(&t, 1, 4, "CPUs 2-3,10-11, NUMA node 0, GPU none, 2 threads");
    expect_binding(&t, 1, 3, "CPUs 2-3,10-11, NUMA node 0, GPU none, 2 threads");
    expect_binding(&t, 2, 3, "CPUs 4-7,12-15, NUMA node 1, GPU none, 4 threads");
    expect_binding(&t, 15, 16, "CPUs 4-7,12-15, NUMA node 1, GPU none, 1 thread");
    put("600000 100000\n", "sys/fs/cgroup/cpu.max");
    topology_read(&t, root, &set);
    t.gpus = 0;
    expect_binding(&t, 1, 2, "CPUs 4-7,12-15, NUMA node 1, GPU none, 3 threads");
    expect_binding(&t, 7, 8, "CPUs 7,15, NUMA node 1, GPU none, 1 thread");
    put("max 100000\n", "sys/fs/cgroup/cpu.max");
    cpu_list_parse(&set, "1,5");                             /* a cpuset of two CPUs */
    topology_read(&t, root, &set);
    t.gpus = 0;
    expect_binding(&t, 1, 2, "CPUs 5, NUMA node 1, GPU none, 1 thread");
    expect_binding(&t, 0, 4, "CPUs 1, NUMA node 0, GPU none, 1 thread");
}

static void cores_near_gpus(void)
{
    Topology  t;
    cpu_set_t set;
    all_cpus(&set);
    topology_read(&t, root, &set);
    t.gpus = 2;                                              /* both on node 1 */
    expect_binding(&t, 0, 2, "CPUs 4-5,12-13, NUMA node 1, GPU 0, 2 threads");
    expect_binding(&t, 1, 2, "CPUs 6-7,14-15, NUMA node 1, GPU 1, 2 threads");
    expect_binding(&t, 3, 4, "CPUs 7,15, NUMA node 1, GPU 1, 1 thread");
    t.gpu[0].node = 0;
    expect_binding(&t, 0, 2, "CPUs 0-3,8-11, NUMA node 0, GPU 0, 4 threads");
    t.gpu[0].node = t.gpu[1].node = NUMA_UNKNOWN;
    expect_binding(&t, 1, 2, "CPUs 4-7,12-15, NUMA node 1, GPU 1, 4 threads");
}

/* Ranks of any host have disjoint cores that together are all, unless ranks outnumber the cores of a node. */
static void random_hosts(void)
{
    for (int round = 0; round < 300; round++) {
        Topology t = { .cores = 1 + rand() % 40 };
        int nodes = 1 + rand() % 4, size = 1 + rand() % 12, total = 0, shared = 0;
        for (int i = 0; i < TOPOLOGY_CPUS; i++) t.core_of[i] = i < t.cores ? i : -1;
        for (int i = 0; i < t.cores; i++) t.core[i] = (TopologyCore){ i, i * nodes / t.cores };
        cpu_set_t all;
        CPU_ZERO(&all);
        for (int r = 0; r < size; r++) {
            RankBinding b;
            binding_find(&b, &t, r, size);
            cpu_set_t both;
            CPU_AND(&both, &all, &b.cpus);
            CPU_OR(&all, &all, &b.cpus);
            shared += CPU_COUNT(&both), total += b.cores;
            EXPECT(b.cores == CPU_COUNT(&b.cpus) && b.cores >= 1 && b.threads >= 1, "rank %d of %d", r, size);
        }
        EXPECT(CPU_COUNT(&all) == t.cores, "%d of %d cores, %d ranks", CPU_COUNT(&all), t.cores, size);
        if (size * nodes <= t.cores)
            EXPECT(!shared && total == t.cores, "%d shared, %d in all", shared, total);
    }
}

/* ---- output of ranks ---- */

static void expect_output(const char *in, bool failed, const char *want, int cause)
{
    Output o;
    char  *text = NULL;
    size_t n = 0;
    FILE  *f = open_memstream(&text, &n);
    output_open(&o, f);
    for (const char *c = in; *c; c++) output_take(&o, c, 1);
    output_finish(&o, failed);
    EXPECT(o.cause == cause, "cause %d instead of %d", o.cause, cause);
    output_close(&o);
    fclose(f);
    EXPECT(!strcmp(text, want), "\n%s    expected:\n%s", text, want);
    free(text);
}

static void errors_once(void)
{
    expect_output("[0] loss 1\ntreb: a: bad\n[1] warning: odd\n[0] warning: odd\ntreb: a: bad\n"
                  "[1] warning: odd\n", true,
                  "[0] loss 1\ntreb: a: bad\n[1] warning: odd\n[1] warning: odd\n", 0);
    expect_output("treb: rank 0 exits: rank 1 (host h, process 7) aborted: a: bad\n"
                  "treb-launch: rank 0 code 6\ntreb-launch: rank 1 code 4\ntreb: a: bad, and worse\n", true,
                  "treb: a: bad, and worse\n", 4);
    expect_output("treb: rank 0 exits: rank 3 (host h, process 7) died; this rank waits\ntreb: rank 1 exits: "
                  "rank 3 (host h, process 7) died; this rank computes\n", true,
                  "treb: rank 0 exits: rank 3 (host h, process 7) died; this rank waits\n", 0);
    expect_output("treb: rank 1 exits: rank 3 died\ntreb: all ranks exit: rank 3 died\n", true,
                  "treb: all ranks exit: rank 3 died\n", 0);
}

static void noise_of_mpirun(void)
{
#define DASHES "--------------------------------------------------------------------------\n"
    static const char block[] = DASHES "mpirun noticed something\n" DASHES;
    char both[512];
    expect_output(block, true, block, 0);                    /* the only explanation */
    expect_output(block, false, "", 0);
    snprintf(both, sizeof both, "%streb: why\n[host:123] PMIX ERROR\n[0] step\n", block);
    expect_output(both, true, "treb: why\n[0] step\n", 0);
    expect_output("no newline at the end", false, "no newline at the end\n", 0);
}

/* ---- hosts and commands ---- */

static void host_lists(void)
{
    Hosts h;
    char  text[64];
    EXPECT_OK(hosts_parse(&h, "a:8,b:4", 0));
    h.host[1].lost = true;
    EXPECT(hosts_slots(&h) == 8 && hosts_widest(&h) == 8, "%d slots", hosts_slots(&h));
    hosts_text(text, sizeof text, &h, true);
    EXPECT(!strcmp(text, "b:4"), "lost: %s", text);
    hosts_close(&h);
    EXPECT_OK(hosts_parse(&h, "10.0.0.1,10.0.0.2", 6));
    EXPECT(h.host[1].slots == 3, "an equal share is %d", h.host[1].slots);
    hosts_close(&h);
    EXPECT_FAIL(hosts_parse(&h, "a,b", 3), E_CONFIG, "write a:8");
    EXPECT_FAIL(hosts_parse(&h, "a:0", 1), E_CONFIG, "slots");
    EXPECT_FAIL(hosts_parse(&h, "a:2,a:2", 4), E_CONFIG, "twice");
    EXPECT_FAIL(hosts_parse(&h, "-oProxyCommand=x:1", 1), E_CONFIG, "not a host");
    EXPECT_FAIL(hosts_parse(&h, "", 1), E_CONFIG, "no host");
}

static void probes(void)
{
    Hosts h;
    char  agent[64];
    put("#!/bin/sh\n[ $1 = there ]\n", "agent");
    snprintf(agent, sizeof agent, "sh %s/agent", root);
    EXPECT_OK(hosts_parse(&h, "there:1,gone:1,localhost:1", 0));
    EXPECT_OK(hosts_probe(&h, agent));
    EXPECT(!h.host[0].lost && h.host[1].lost && !h.host[2].lost, "lost: %d %d %d", h.host[0].lost,
           h.host[1].lost, h.host[2].lost);
    hosts_close(&h);
}

static void quoted_words(void)
{
    Words  w = { 0 };
    char  *text = NULL;
    size_t n = 0;
    FILE  *f = open_memstream(&text, &n);
    EXPECT_OK(words_add_all(&w, 3, (char *[]){ "a=b", "it's", "" }));
    words_print(f, &w);
    fclose(f);
    EXPECT(!strcmp(text, "a=b 'it'\\''s' ''\n"), "%s", text);
    free(text);
    words_close(&w);
}

/* ---- layouts ---- */

/* The layout of a recipe for 8 ranks on `most`: how many it uses, and a key that it sets. */
static void expect_layout(int most, int ranks, const char *key, int n, char *const *overrides)
{
    Relayout r;
    bool     has = !*key;
    RelayoutAsk ask = { "/dev/null", overrides, n, 8, most, 1, most };
    EXPECT_OK(relayout_find(&r, &ask));
    for (int i = 0; i < r.keys.n; i++) has |= !strcmp(r.keys.at[i], key);
    EXPECT(r.ranks == ranks, "%d ranks of %d", r.ranks, most);
    EXPECT(has, "no %s in layout %s", key, r.layout);
}

static void layouts_for_fewer_ranks(void)
{
    char model[256];
    put("{\"model_type\": \"qwen3_moe\", \"vocab_size\": 600, \"hidden_size\": 48, \"num_hidden_layers\": 4, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, "
        "\"intermediate_size\": 96, \"moe_intermediate_size\": 32, \"num_experts\": 8, "
        "\"num_experts_per_tok\": 2, \"norm_topk_prob\": true, \"rope_theta\": 10000, "
        "\"torch_dtype\": \"float32\"}", "model/config.json");
    snprintf(model, sizeof model, "model.preset=%s/model", root);
    char *words[] = { model, "train.micro_tokens=128", "data.max_length=128", "parallel.ep=8",
                      "parallel.tp=2", "device.backend=cpu", "train.global_tokens=1024" };
    expect_layout(4, 4, "", 7, words);
    expect_layout(3, 2, "", 7, words);                       /* dp 2 is faster than 3 pipeline stages */
    expect_layout(7, 4, "", 7, words);                       /* nothing divides by 7, and dp 4 beats pp 3 */
    expect_layout(4, 4, "train.global_tokens=512", 6, words);        /* dp was 4 micro-batches of 128 */
    Relayout r;
    words[6] = "train.global_tokens=128";                    /* one micro-batch: dp is 1 */
    RelayoutAsk ask = { "/dev/null", words, 7, 8, 7, 7, 7 };
    EXPECT_FAIL(relayout_find(&r, &ask), E_FIT, "7 ranks");
}

int main(void)
{
    if (!mkdtemp(root)) return 1;
    make_host();
    RUN(lists);
    RUN(cores_and_gpus);
    RUN(cores_of_ranks);
    RUN(cores_near_gpus);
    RUN(random_hosts);
    RUN(errors_once);
    RUN(noise_of_mpirun);
    RUN(host_lists);
    RUN(probes);
    RUN(quoted_words);
    RUN(layouts_for_fewer_ranks);
    folder_remove(root);
    return lab_report();
}
