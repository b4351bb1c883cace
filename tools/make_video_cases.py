#!/usr/bin/env python3
"""Writes tests/video/: small clips of odd rates, lengths, codecs and containers, made by ffmpeg, and cases.json,
what transformers' Qwen3VLProcessor makes of each: chosen frames, rate, grid, ids, and the mean level of each
colour in each patch. Needs ffmpeg, transformers, torchvision and torchcodec; run in the repository's root."""
import json
import os
import subprocess

import av
import numpy as np
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

OUT = "tests/video"
H264 = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "32"]
CLIPS = {                                # name: rate, seconds, what ffmpeg is told
    "ntsc_h264.mp4": ("30000/1001", 3.3, H264 + ["-bf", "3"]),
    "film_hevc.mp4": ("24000/1001", 4.1, ["-c:v", "libx265", "-x265-params", "log-level=none", "-pix_fmt", "yuv420p", "-crf", "34"]),
    "pal_vp9.webm": ("25", 2.7, ["-c:v", "libvpx-vp9", "-crf", "50", "-b:v", "0"]),
    "slow_vp8.webm": ("25/2", 5, ["-c:v", "libvpx", "-b:v", "30k"]),
    "seven_av1.mp4": ("7", 3, ["-c:v", "libaom-av1", "-cpu-used", "8", "-crf", "50", "-b:v", "0"]),
    "fifteen_mpeg4.avi": ("15", 3.2, ["-c:v", "mpeg4", "-q:v", "20"]),
    "short_mjpeg.mov": ("10", 0.5, ["-c:v", "mjpeg", "-q:v", "14", "-pix_fmt", "yuvj420p"]),
    "fast_mpeg2.ts": ("60000/1001", 1.1, ["-c:v", "mpeg2video", "-q:v", "22"]),
    "uneven_h264.mkv": ("30", 4, ["-vf", "select='not(mod(n,3))+gt(n,70)'", "-vsync", "vfr"] + H264),
    "three_theora.ogv": ("24", 0.125, ["-c:v", "libtheora", "-q:v", "3"]),
    "one_flv1.flv": ("1", 9, ["-c:v", "flv1", "-q:v", "20"]),
    "turned_h264.mp4": ("20", 2, H264),
    "cut_h264.mp4": ("25", 4, H264 + ["-bf", "2"]),              # its edit list hides the first frames
    "uneven_h264.mp4": ("30", 3, ["-vf", "select='not(mod(n,2))+lt(n,20)'", "-vsync", "vfr"] + H264),
    "uneven_gif.gif": ("10", 2, ["-vf", "select='not(mod(n,3))+gt(n,16)'", "-vsync", "vfr"]),
    "deep_hevc.mp4": ("24", 1.3, ["-c:v", "libx265", "-x265-params", "log-level=none", "-pix_fmt", "yuv420p10le", "-crf", "34"]),
}
# What is done to a finished file, without encoding it again: options before and after its name.
REMUX = {"turned_h264.mp4": ([], ["-metadata:s:v", "rotate=90"]), "cut_h264.mp4": (["-ss", "1.3"], [])}
TEXT = "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|>What?<|im_end|>\n<|im_start|>assistant\nIt runs.<|im_end|>\n"


def ffmpeg(*args):
    subprocess.run(["ffmpeg", "-v", "error", "-y", *args], check=True)


def make(name, rate, seconds, args):
    path = f"{OUT}/{name}"
    ffmpeg("-f", "lavfi", "-i", f"testsrc2=size=100x70:rate={rate}:duration={seconds}", "-fflags", "+bitexact",
           "-flags:v", "+bitexact", *args, path)
    if name in REMUX:
        before, after = REMUX[name]
        os.rename(path, OUT + "/t.mp4")
        ffmpeg(*before, "-i", OUT + "/t.mp4", "-c", "copy", *after, path)
        os.remove(OUT + "/t.mp4")
    return path


def process(processor, path):
    """torchcodec cannot seek to the end of some transport streams; their frames come from PyAV."""
    try:
        return processor(text=[TEXT], videos=[path], return_tensors="pt", return_metadata=True)
    except RuntimeError:
        with av.open(path) as f:
            rate = f.streams.video[0].average_rate
            frames = np.stack([x.to_ndarray(format="rgb24") for x in f.decode(video=0)])
        meta = {"total_num_frames": len(frames), "fps": float(rate), "duration": len(frames) / float(rate)}
        return processor(text=[TEXT], videos=[frames], video_metadata=[meta], do_sample_frames=True, return_tensors="pt",
                         return_metadata=True)


def levels(pixels, grid):
    """Means of (slice, patch, colour, frame), as 8-bit levels."""
    t, h, w = (int(v) for v in grid)
    v = ((pixels.float() * 0.5 + 0.5) * 255).reshape(t, h * w, 3, 2, -1).mean(-1)
    return [round(float(x), 1) for x in v.flatten()]


def main():
    os.makedirs(OUT, exist_ok=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file="tests/gold_text/tokenizer.json")
    video = Qwen3VLVideoProcessor(size={"shortest_edge": 4096, "longest_edge": 200000})
    processor = Qwen3VLProcessor(image_processor=Qwen2VLImageProcessor(patch_size=16), tokenizer=tokenizer, video_processor=video)
    cases = []
    for name, (rate, seconds, args) in CLIPS.items():
        path = make(name, rate, seconds, args)
        out = process(processor, path)
        meta, grid = out["video_metadata"][0], out["video_grid_thw"][0]
        cases.append({"file": name, "total": int(meta.total_num_frames), "fps": float(meta.fps),
                      "frames": [int(i) for i in meta.frames_indices], "grid": [int(v) for v in grid],
                      "ids": [int(i) for i in out["input_ids"][0]], "levels": levels(out["pixel_values_videos"], grid)})
        print(name, os.path.getsize(path), meta.total_num_frames, meta.fps, list(grid), meta.video_backend)
    with open(OUT + "/cases.json", "w") as f:
        f.write("[" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]\n")


main()
