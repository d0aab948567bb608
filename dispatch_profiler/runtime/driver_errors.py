"""What a GPU's driver says of a kernel that it does not take, in words that tell what to do."""

from __future__ import annotations

import re


def driver_refusal(text: str) -> str:
    """Why the CUDA driver refused an executable, from the text of IREE's error; empty if it is another.

    `...Unsupported .version 9.9; current version is '9.0'...` -> a sentence with both versions.
    """
    version = re.search(r"Unsupported \.version ([\d.]+); current version is '([\d.]+)'", text)
    if version:
        return f"its kernel is PTX {version[1]}, but this driver takes up to {version[2]}: update the driver"
    if "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" in text:
        return "its kernel is of a newer PTX version than this driver takes: update the driver"
    shared = re.search(r"requires (\d+)B of shared memory and exceeds the device maximum of (\d+)B", text)
    if shared:
        return f"its kernel takes {shared[1]} B of shared memory, but this device has {shared[2]}"
    if "CUDA_ERROR_NOT_FOUND" in text:
        return "its object has no kernel of the name that is launched"
    invalid = re.search(r"CUDA_ERROR_(INVALID_PTX|NO_BINARY_FOR_GPU|INVALID_IMAGE)", text)
    if invalid:
        said = re.search(r"error\s*:\s*([^;]+?)(?: ptxas application|;|$)", text)
        detail = f": {said[1].strip()}" if said else ""
        return f"its kernel is for another GPU than this ({invalid[1]}){detail}"
    return ""
