"""A medium: how its bytes are opened, what its header says and how it is decoded, side by side for each kind.

open.py (bytes, FFmpeg containers), image.py, video.py, audio.py; resize.py (the size that a picture is given) and
pixels.py (resizing, patches, what a stored byte stands for).
"""
