"""Rejections of kernels by a GPU's driver, as messages that say what to do."""

from __future__ import annotations

import re


def driver_rejection(text: str) -> str:
    """Why the CUDA driver rejected an executable, from the text of IREE's error; empty for other errors.

    `...Unsupported .version 9.9; current version is '9.0'...` -> a sentence with both versions.
    """
    version = re.search(r"Unsupported \.version ([\d.]+); current version is '([\d.]+)'", text)
    if version:
        return f"the kernel is PTX {version[1]}, the driver supports up to {version[2]}: update the driver"
    if "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" in text:
        return "the kernel's PTX version is newer than the driver supports: update the driver"
    shared = re.search(r"requires (\d+)B of shared memory and exceeds the device maximum of (\d+)B", text)
    if shared:
        return f"the kernel needs {shared[1]} B of shared memory, but this device has {shared[2]}"
    if "CUDA_ERROR_NOT_FOUND" in text:
        return "the object has no kernel with the name that is launched"
    invalid = re.search(r"CUDA_ERROR_(INVALID_PTX|NO_BINARY_FOR_GPU|INVALID_IMAGE)", text)
    if invalid:
        reason = re.search(r"error\s*:\s*([^;]+?)(?: ptxas application|;|$)", text)
        detail = f": {reason[1].strip()}" if reason else ""
        return f"the kernel is for another GPU ({invalid[1]}){detail}"
    return ""
