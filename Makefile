# Trebuchet. `make` builds the CPU trainer, `make help` lists the rest. Adding a file needs no edit here.

BUILD  ?= build
ifeq ($(origin CC),default)
  CC   := gcc
endif
NVCC   ?= nvcc
CUDA   ?= 0
SAN    ?= 0
SIMT   ?= 0
STATIC ?= 0
MPI    ?= $(shell pkg-config --exists ompi-c 2>/dev/null && echo 1 || echo 0)
MICROHTTPD ?= $(shell pkg-config --exists libmicrohttpd 2>/dev/null && echo 1 || echo 0)
OPENBLAS ?= $(shell pkg-config --exists openblas 2>/dev/null && echo 1 || echo 0)
LIBAV  ?= $(shell pkg-config --exists libavformat libavcodec libswscale libavutil 2>/dev/null && echo 1 || echo 0)
OPT    ?= -O3

PKGS   := jansson yaml-0.1 libjpeg libpng libwebp libpcre2-8 libutf8proc libxxhash zlib
WARN   := -Wall -Wextra -Wshadow -Wvla -Wno-unused-parameter
ifneq ($(findstring clang,$(CC)),)
  WARN += -Wno-pass-failed -Wno-string-concatenation -Wno-missing-field-initializers
endif
CFLAGS += -std=gnu17 $(OPT) -g $(WARN) -fopenmp -fno-math-errno -fno-trapping-math -Isrc -I. $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)

ifeq ($(OPENBLAS),1)                     # treb-bench measures it as a peer; nothing else calls it
  BLAS        := $(shell pkg-config --libs openblas)
  BLAS_CFLAGS := -DTREB_OPENBLAS $(shell pkg-config --cflags openblas)
endif

ifeq ($(STATIC),1)                       # third-party libraries inside, for a machine that has none of them
  LIBS := -Wl,-Bstatic $(LIBS) -lz -Wl,-Bdynamic
  ifdef BLAS
    BLAS := -Wl,-Bstatic $(BLAS) -lgfortran -lquadmath -Wl,-Bdynamic
  endif
endif
LIBS += -lm -lpthread -ldl

ifeq ($(MPI),1)                          # headers alone: the library is loaded by the run that wants it
  CFLAGS += -DTREB_MPI $(shell pkg-config --cflags ompi-c)
endif

ifeq ($(LIBAV),1)                        # headers alone: a run loads the libraries when it meets a video file
  LIBAV_CFLAGS := -DTREB_LIBAV $(shell pkg-config --cflags libavformat libavcodec libswscale libavutil)
endif

ifeq ($(MICROHTTPD),1)                   # headers alone: `treb watch` loads the library
  HTTP_CFLAGS := -DTREB_MICROHTTPD $(shell pkg-config --cflags libmicrohttpd)
endif

# Folders of programs over the library: folder x becomes $(BUILD)/treb-x, and its sources but main.c a library for tests.
SIDE   := $(patsubst %/main.c,%,$(wildcard demo/main.c bench/main.c))

# The CUDA backend on an emulated GPU (tests/simt) has a folder of its own; see SIMT=1.
SIMT_BUILD := $(BUILD)/simt$(if $(filter 1,$(SAN)),/asan)

# What is the same with and without CUDA is compiled once, in ROOT; BOTH are the tables that ask which it is.
ROOT   := $(BUILD)
SRC    := $(wildcard src/*/*.c src/*/*/*.c)
BOTH   := $(shell grep -l TREB_CUDA $(SRC) $(wildcard $(SIDE:%=%/*.c)))

ifeq ($(CUDA),1)
  override BUILD := $(BUILD)/cuda
  CUDA_DIR := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))
  CUDA_OPT ?= -O3
  NVFLAGS  := -std=c++17 -Isrc -DTREB_CUDA $(filter -DTREB_MPI,$(CFLAGS)) -Xcompiler -Wall
  # Compute capabilities to make code for, and ptx for later ones; a build to carry to one machine is for Hopper alone.
  CUDA_ALL   := 80 86 89 90a 100 120 ptx
  CUDA_ARCHS ?= $(if $(filter 1,$(STATIC)),90a,$(CUDA_ALL))
  gencode     = $(foreach a,$(1),-gencode=arch=compute_$(patsubst ptx,100,$(a)),code=$(if $(filter ptx,$(a)),compute_100,sm_$(a)))
  # Kernels of Hopper's own instructions: every file that includes a header built on hopper.cuh.
  CU_HOPPER  := $(shell grep -lE '"ops/cuda/(hopper|hopper_mma|hopper_fp8|tile_queue|grouped|grouped_fp8|attention_vision|attention_vision_bwd)\.cuh"' src/ops/cuda/*.cu)
  LIBS     += -L$(CUDA_DIR)/lib64 -lcudart -lcublasLt -lstdc++
  CU       := $(wildcard src/*/*.cu src/*/*/*.cu)
endif

# Kernels rewritten for the host's compiler, for tests alone. The libraries' files are left out.
ifeq ($(SIMT),1)
  override BUILD := $(BUILD)/simt
  CU       := $(filter-out src/ops/cuda/cublaslt%,$(wildcard src/*/*.cu src/*/*/*.cu))
  SIMT_OBJ  = $(patsubst %.cc,$(BUILD)/%.o,$(wildcard tests/simt/*.cc))
  SIMT_GEN  = $(patsubst %,$(BUILD)/gen/%,$(wildcard src/*/*.cu src/*/*/*.cu src/*/*.cuh src/*/*/*.cuh) src/base/rng.h)
  SIMT_OPT ?= -O1
  SIMTFLAGS = -std=gnu++17 $(SIMT_OPT) -g1 -fno-strict-aliasing -fopenmp -ffp-contract=off -Wno-psabi -DTREB_CUDA \
              -D__CUDACC__ -D__CUDA_ARCH__=890 -I$(BUILD)/gen/src -Isrc -I. -Itests -Itests/simt/include \
              $(filter -fsanitize% -fno-sanitize% -fno-omit% -DTREB_SANITIZE,$(CFLAGS))
  LIBS     += -lstdc++
endif

ifeq ($(SAN),1)
  override BUILD := $(BUILD)/asan
  ROOT   := $(ROOT)/asan
  OPT    := -O1
  CFLAGS += -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -DTREB_SANITIZE
  LIBS   += -fsanitize=address,undefined
endif

objects = $(patsubst %.c,$(ROOT)/%.o,$(filter-out $(BOTH),$(1))) $(patsubst %.c,$(BUILD)/%.o,$(filter $(BOTH),$(1)))
side_cu = $(if $(filter 1,$(CUDA)),$(patsubst %.cu,$(BUILD)/%.cu.o,$(wildcard $(1)/*.cu)))
OBJ   := $(call objects,$(SRC)) $(CU:%.cu=$(BUILD)/%.cu.o) $(SIMT_OBJ)
CORE  := $(BUILD)/libtreb.a
SIDE_BIN := $(SIDE:%=$(BUILD)/treb-%)
SIDE_LIB := $(SIDE:%=$(BUILD)/libtreb-%.a)
SIDE_OBJ := $(call objects,$(wildcard $(SIDE:%=%/*.c))) $(foreach folder,$(SIDE),$(call side_cu,$(folder)))
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
FUZZ  := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/fuzz_*.c))
GPU   := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/gpu_*.c))

all: setup
	@$(MAKE) --no-print-directory -j$$(nproc) $(BUILD)/treb $(SIDE_BIN)

help:
	@echo "make            build $(BUILD)/treb for the CPU (installs the Debian packages that are missing)"
	@echo "make demo       train a small vision-language MoE on drawn pictures, show what it learned (DEMO_SEED=n: other ones)"
	@echo "make demo-lora  the same model without one colour, which it then learns by adapters on its experts; what it forgets is counted"
	@echo "make test       build and run every test; ends with one line of counts"
	@echo "make asan       the same tests under AddressSanitizer and UBSan"
	@echo "make soak       long checks: kills of runs and ranks, FP8, four hosts, Slurm, bare Debian systems, fuzzing (SOAK seconds each, 600)"
	@echo "make test-simt  every CUDA kernel, Hopper's too, on an emulated GPU, against the CPU; SAN=1: every access is checked"
	@echo "make CUDA=1     with the CUDA backend (needs nvcc), in $(BUILD)/cuda, for every GPU since 2020; CUDA_ARCHS=\"89\": for some alone, faster"
	@echo "make CUDA=1 kernel-registers   registers and spills of the portable kernels on every GPU"
	@echo "make CUDA=1 test-gpu   every op against the CPU, recorded cases and short runs on the GPU"
	@echo "make install    programs, man page, shell completion, recipes (PREFIX=/usr/local DESTDIR=)"
	@echo "make lint       words, columns, includes, public types, clang-tidy;  make size: lines by folder"
	@echo "make format     clang-format the tree;  make clean"

$(BUILD)/treb: $(ROOT)/src/cli/main.o $(CORE)
	@$(CC) $(CFLAGS) -o $@ $^ $(LIBS)
	@echo "built $@"

$(ROOT)/bench/bench.o: CFLAGS += $(BLAS_CFLAGS)
$(BUILD)/treb-bench: LIBS += $(BLAS)

$(CORE): $(filter-out $(ROOT)/src/cli/main.o,$(OBJ))
	@mkdir -p $(@D); rm -f $@ && ar rcs $@ $^

define side_rules
$(BUILD)/libtreb-$(1).a: $(call objects,$(filter-out $(1)/main.c,$(wildcard $(1)/*.c))) $(call side_cu,$(1))
	@mkdir -p $$(@D); rm -f $$@ && ar rcs $$@ $$^
$(BUILD)/treb-$(1): $(call objects,$(1)/main.c) $(BUILD)/libtreb-$(1).a $(CORE)
	@$(CC) $(CFLAGS) -o $$@ $$^ $$(LIBS)
endef
$(foreach folder,$(SIDE),$(eval $(call side_rules,$(folder))))

# page.css and page.js as C string literals, which report/page.c includes.
$(ROOT)/gen/page_%.inc: src/report/page.%
	@mkdir -p $(@D)
	@sed -e 's/[\\"]/\\&/g' -e 's/.*/"&\\n"/' $< > $@
$(ROOT)/src/report/page.o: $(ROOT)/gen/page_css.inc $(ROOT)/gen/page_js.inc
$(ROOT)/src/report/page.o: CFLAGS += -I$(ROOT)/gen

$(ROOT)/src/watch/http.o: CFLAGS += $(HTTP_CFLAGS)
$(addprefix $(ROOT)/src/data/,libav.o video_file.o video_libav.o): CFLAGS += $(LIBAV_CFLAGS)

$(ROOT)/%.o: %.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

# What base/version.c says of the build; the file changes only when its contents do.
COMMIT    := $(shell git describe --always --dirty --tags 2>/dev/null || echo unknown)
LIBRARIES  = $(shell for p in $(PKGS); do printf '%s %s,' $$p "$$(pkg-config --modversion $$p 2>/dev/null)"; done)
$(ROOT)/build_info.h: FORCE
	@mkdir -p $(@D)
	@printf '#define BUILD_COMMIT "%s"\n#define BUILD_FLAGS "%s"\n#define BUILD_LIBRARIES "%s"\n' \
	    '$(COMMIT)' '$(filter-out -I%,$(CFLAGS))' '$(LIBRARIES)' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(ROOT)/src/base/version.o: $(ROOT)/build_info.h
$(ROOT)/src/base/version.o: CFLAGS += -I$(ROOT)
FORCE:

ifneq ($(filter 1,$(CUDA) $(SIMT)),)
$(BOTH:%.c=$(BUILD)/%.o): $(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) -DTREB_CUDA -MMD -MP -c -o $@ $<
endif

$(BUILD)/bench/%.cu.o: NVFLAGS += -I.
# Below -O3 ptxas reports wgmma that it cannot overlap.
$(CU_HOPPER:%.cu=$(BUILD)/%.cu.o): CODE = $(call gencode,90a)
$(CU_HOPPER:%.cu=$(BUILD)/%.cu.o): override CUDA_OPT = -O3
CODE = $(call gencode,$(if $(filter all,$(CUDA_ARCHS)),$(CUDA_ALL),$(CUDA_ARCHS)))
ifeq ($(SIMT),1)
$(BUILD)/gen/%: % tests/simt/rewrite.awk
	@mkdir -p $(@D)
	@awk -v name=$< -f tests/simt/rewrite.awk $< >$@
$(BUILD)/simt.h.gch: tests/simt/simt.h $(wildcard tests/simt/*.h)
	@mkdir -p $(@D)
	@$(CXX) $(SIMTFLAGS) -x c++-header -o $@ $<
$(BUILD)/%.cu.o: $(BUILD)/gen/%.cu $(BUILD)/simt.h.gch $(SIMT_GEN)
	@mkdir -p $(@D)
	@$(CXX) $(SIMTFLAGS) -w -include $(BUILD)/simt.h -MMD -MP -x c++ -c -o $@ $<
$(BUILD)/tests/simt/selftest $(BUILD)/tests/simt/selftest_hopper: %: %.cu.o $(CORE)
	@$(CXX) $(SIMTFLAGS) -o $@ $^ $(LIBS)
$(BUILD)/tests/%_hopper: $(BUILD)/tests/%
	@printf '#!/bin/sh\nSIMT_CAPABILITY=9.0 TREB_TEST=$(SIMT_ONLY_$*) exec $<\n' >$@ && chmod +x $@
$(BUILD)/tests/simt/%.o: tests/simt/%.cc $(SIMT_GEN)
	@mkdir -p $(@D)
	@$(CXX) $(SIMTFLAGS) -O3 -MMD -MP -c -o $@ $<
else
$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	@$(NVCC) $(CUDA_OPT) $(NVFLAGS) $(CODE) -MMD -MP -c -o $@ $<
endif

# Tests compile in half the time at -O1; the library that they test has its own flags.
$(ROOT)/tests/%.o: CFLAGS += -Itests -O1

$(BUILD)/tests/%: $(ROOT)/tests/%.o $(SIDE_LIB) $(CORE)
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) -o $@ $(filter %.o,$^) $(SIDE_LIB) $(CORE) $(LIBS)

$(BUILD)/tests/gpu_endless: $(BUILD)/tests/spin.cu.o
$(BUILD)/tests/spin.cu.o: NVFLAGS += -Itests

.PRECIOUS: $(ROOT)/%.o $(BUILD)/gen/%
-include $(OBJ:.o=.d) $(SIDE_OBJ:.o=.d) $(patsubst $(BUILD)/%,$(ROOT)/%.d,$(TESTS) $(FUZZ) $(GPU))

# What tests/faults.sh does to ranks and to their disk.
FAULTS := $(BUILD)/tests/freeze $(BUILD)/tests/loopback $(BUILD)/tests/slow_disk.so
$(BUILD)/tests/slow_disk.so: tests/slow_disk.c
	@mkdir -p $(@D)
	@$(CC) -O2 -shared -fPIC -o $@ $< -ldl

# The order of run.sh's arguments is the order of the report; shell tests need the binary.
test-programs: $(BUILD)/treb $(SIDE_BIN) $(TESTS) $(FUZZ) $(FAULTS)

# Scripts of `make test`; those that start ranks run beside the programs (tests/run.sh).
SCRIPTS := cli data_doc journey pages config_keys plan demo demo_lora report watch kill full mpi ranks \
           eval_ranks rank_kill faults launch tune fuzz

test: setup lint
	@$(MAKE) --no-print-directory -j$$(nproc) test-programs
	@$(if $(SIMT_RUN),$(MAKE) --no-print-directory -j$$(nproc) SIMT=1 $(SIMT_RUN),echo "skip the emulated GPU: there is no $(CXX)")
	@$(MAKE) --no-print-directory cuda-compiles
	@TREB=$(BUILD)/treb TEST_COMM=$(BUILD)/tests/test_comm TEST_LAYOUTS=$(BUILD)/tests/test_layouts FUZZ="$(FUZZ)" tests/run.sh $(TESTS) $(SIMT_RUN) $(SCRIPTS:%=tests/%.sh)

# Kernels on an emulated GPU (tests/simt): the tests of ops, without those that measure time or need several GPUs.
# `make test` has the short ones. NAME_hopper is NAME on an emulated GPU of compute capability 9.0; SIMT_ONLY_NAME: those
# of its tests whose kernels differ there.
SIMT_TESTS := simt/selftest simt/selftest_hopper $(addprefix gpu_,weight_code optim adamw_fp8 results side delta clusters_hopper)
SIMT_RUN    = $(if $(shell command -v $(CXX)),$(SIMT_TESTS:%=$(SIMT_BUILD)/tests/%))
SIMT_MORE  := $(addprefix gpu_,offload rows loss families precision moe grouped adapters attention gemm fp8 fp8_weights dw_fp8 graph) \
              $(patsubst %,gpu_%_hopper,loss grouped adapters attention fp8 fp8_weights dw_fp8 coded)
SIMT_ONLY_gpu_attention := image
test-simt: setup
	@$(MAKE) --no-print-directory -j$$(nproc) SIMT=1 $(addprefix $(SIMT_BUILD)/tests/,$(SIMT_TESTS) $(SIMT_MORE))
	@tests/run.sh $(addprefix $(SIMT_BUILD)/tests/,$(SIMT_TESTS) $(SIMT_MORE))

asan: setup
	@TREB_TEST_TIMEOUT=2700 $(MAKE) --no-print-directory SAN=1 test

# CUDA code cannot run without a GPU, but it can always be compiled where nvcc is. -O1 and one architecture take the
# least time; the objects have a folder of their own, so that `make CUDA=1` never links them.
cuda-compiles:
	@if [ $(CUDA)$(SAN) = 00 ] && command -v $(NVCC) >/dev/null; then \
	    $(MAKE) --no-print-directory -j$$(nproc) CUDA=1 ROOT=$(ROOT) BUILD=$(BUILD)/compiled CUDA_ARCHS=90a \
	        CUDA_OPT="-O1 -Xcicc -O1 -Xptxas -O1" gpu-programs; fi

# What ptxas says of the portable kernels for every compute capability; a kernel that spills is an error.
# SHORT=1: a line for each file, not for each kernel.
SASS_ARCHS ?= $(filter-out ptx,$(CUDA_ALL))
SASS := $(foreach a,$(SASS_ARCHS),$(patsubst src/ops/cuda/%.cu,$(BUILD)/sass/%.$(a).txt,$(wildcard src/ops/cuda/portable_*.cu)))
define sass_rule
$(BUILD)/sass/%.$(1).txt: src/ops/cuda/%.cu $(wildcard src/ops/cuda/*.cuh)
	@mkdir -p $$(@D)
	@$(NVCC) $(CUDA_OPT) $(NVFLAGS) $(call gencode,$(1)) -Xptxas -v -cubin -o $$(@:.txt=.cubin) $$< 2>$$@.new || { cat $$@.new >&2; exit 1; }
	@mv $$@.new $$@
endef
$(foreach a,$(filter-out ptx,$(CUDA_ALL)),$(eval $(call sass_rule,$(a))))
kernel-registers: $(SASS)
	@tools/kernel_registers.sh $(if $(filter 1,$(SHORT)),-short) $(SASS)

# What a GPU is tested with; the script needs nothing else, so the programs can be carried to a machine that has one.
gpu-programs: $(BUILD)/treb $(SIDE_BIN) $(GPU) $(BUILD)/tests/freeze $(BUILD)/tests/loopback

test-gpu: setup
	@[ $(CUDA) = 1 ] || { echo "make CUDA=1 test-gpu: the programs need the CUDA backend"; exit 1; }
	@$(MAKE) --no-print-directory -j$$(nproc) gpu-programs
	@TREB=$(BUILD)/treb GPU_TESTS="$(GPU)" tests/gpu.sh

SOAK ?= 600
soak: setup
	@$(MAKE) --no-print-directory -j$$(nproc) $(BUILD)/treb $(SIDE_BIN) $(BUILD)/tests/test_layouts $(BUILD)/tests/test_fp8_weights $(BUILD)/tests/test_base_quant $(BUILD)/tests/test_hidden $(BUILD)/tests/test_decode_ranks $(BUILD)/tests/test_moe_chunked $(BUILD)/tests/test_plan_random $(BUILD)/tests/test_dryrun $(BUILD)/tests/test_auto $(BUILD)/tests/test_walls $(FAULTS)
	@TREB=$(BUILD)/treb TREB_KILLS=50 TREB_KILL_STEPS=400 tests/kill.sh
	@TREB=$(BUILD)/treb TREB_KILLS=10 TREB_STOPS=5 TREB_FREEZES=5 TREB_CUTS=3 TREB_RESUME=all tests/faults.sh
	@TREB=$(BUILD)/treb TREB_KILLS=20 TREB_KILL_STEPS=24 tests/rank_kill.sh
	@TREB=$(BUILD)/treb TREB_KILLS=20 TREB_KILL_STEPS=24 tests/launch.sh
	@TREB=$(BUILD)/treb TEST_LAYOUTS=$(BUILD)/tests/test_layouts TREB_LAYOUT_RUNS=8 tests/ranks.sh
	@TREB_LAYOUTS=40 TREB_LAYOUT_STEPS=20 TREB_UNEVEN=10000 $(BUILD)/tests/test_layouts
	@for f in 1 2 3 4 5 6 7; do TREB_FAMILY=$$f TREB_LAYOUTS=20 TREB_LAYOUT_STEPS=5 TREB_UNEVEN=1 $(BUILD)/tests/test_layouts && TREB_FAMILY=$$f TREB_DECODE_LAYOUTS=20 $(BUILD)/tests/test_decode_ranks || exit 1; done
	@TREB_LAYOUTS=100 $(BUILD)/tests/test_fp8_weights
	@TREB_LAYOUTS=100 $(BUILD)/tests/test_base_quant
	@TREB_LAYOUTS=20 $(BUILD)/tests/test_state_offload
	@TREB_DECODE_LAYOUTS=100 $(BUILD)/tests/test_decode_ranks
	@TREB_CHUNKED=500 $(BUILD)/tests/test_moe_chunked
	@TREB_RECIPES=8000 $(BUILD)/tests/test_plan_random
	@TREB_HIDDEN=1 $(BUILD)/tests/test_hidden
	@TREB_WALLS=1 $(BUILD)/tests/test_walls
	@TREB_PLANS=200 $(BUILD)/tests/test_dryrun
	@TREB_AUTO=50 $(BUILD)/tests/test_auto
	@TREB=$(BUILD)/treb DEMO_DIR=$(BUILD)/demo-lora tools/demo_lora.sh
	@TREB=$(BUILD)/treb tests/precision.sh
	@TREB_TEST_TIMEOUT=7200 $(MAKE) --no-print-directory test-simt
	@if command -v $(NVCC) >/dev/null; then $(MAKE) --no-print-directory -j$$(nproc) CUDA=1 kernel-registers; fi
	@TREB=$(BUILD)/treb tests/hosts.sh
	@TREB=$(BUILD)/treb tests/slurm.sh
	@tests/bare.sh
	@$(MAKE) --no-print-directory -j$$(nproc) SAN=1 $(FUZZ:$(BUILD)/%=$(BUILD)/asan/%)
	@for f in $(FUZZ:$(BUILD)/%=$(BUILD)/asan/%); do echo "$$f for $(SOAK) s"; $$f -seconds $(SOAK) || exit 1; done
	@if command -v ffmpeg >/dev/null; then tools/make_video_seeds.py $(BUILD)/video_seeds && echo "fuzz_video on small files for $(SOAK) s" && $(BUILD)/asan/tests/fuzz_video -seconds $(SOAK) $(BUILD)/video_seeds; fi

demo: all
	@TREB=$(BUILD)/treb DEMO_DIR=$(BUILD)/demo tools/demo.sh

demo-lora: all
	@TREB=$(BUILD)/treb DEMO_DIR=$(BUILD)/demo-lora tools/demo_lora.sh

setup:
	@tools/setup.sh

lint: $(ROOT)/gen/page_css.inc $(ROOT)/gen/page_js.inc $(ROOT)/build_info.h
	@tools/setup.sh lint
	@LINT_FLAGS="-I$(ROOT) -I$(ROOT)/gen $(LIBAV_CFLAGS) $(shell pkg-config --cflags $(PKGS) 2>/dev/null)" tools/lint.sh

layers:
	@tools/layers.sh

# Programs, man page, shell completion and recipes.
PREFIX ?= /usr/local
SHARE  := $(DESTDIR)$(PREFIX)/share
install: all
	@install -d $(DESTDIR)$(PREFIX)/bin $(SHARE)/man/man1 $(SHARE)/treb/recipes $(SHARE)/bash-completion/completions \
	    $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	@install $(BUILD)/treb $(SIDE_BIN) $(DESTDIR)$(PREFIX)/bin
	@install -m 644 recipes/*.yaml $(SHARE)/treb/recipes
	@$(BUILD)/treb help --man >$(SHARE)/man/man1/treb.1
	@$(BUILD)/treb help --completion bash >$(SHARE)/bash-completion/completions/treb
	@$(BUILD)/treb help --completion zsh >$(SHARE)/zsh/site-functions/_treb
	@$(BUILD)/treb help --completion fish >$(SHARE)/fish/vendor_completions.d/treb.fish
	@echo "installed in $(DESTDIR)$(PREFIX)"

size:
	@tools/size.sh

format:
	@tools/setup.sh format
	@clang-format -i $$(git ls-files '*.c' '*.h' '*.cu')

clean:
	@rm -rf build

.PHONY: all help test test-programs asan cuda-compiles kernel-registers gpu-programs test-gpu test-simt soak demo demo-lora setup lint layers install size format clean
