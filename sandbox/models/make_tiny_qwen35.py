# Copyright: (c) 2026, the baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a tiny Qwen3.5 checkpoint with random, seeded weights: the real architecture at 3 MB, for tests.

The model is `Qwen3_5ForCausalLM` as transformers has it: hybrid, three Gated DeltaNet layers to one of full attention.
It comes with a BPE tokenizer trained here on Python's own help texts, and with a ChatML template that has Qwen3.5's
`enable_thinking` switch. It answers noise, always the same noise at temperature 0.

Run it with a Python that has torch and transformers, for instance that of an engine venv. OUT is
either whole or absent.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
from pathlib import Path
from typing import Any

from _checkpoint import refuse_existing, save

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]

CHAT_TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string %}{{ message['content'] }}
{%- else %}{%- for part in message['content'] %}{{ part['text'] if 'text' in part else '' }}{%- endfor %}{%- endif %}
{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""


def build_tokenizer(vocab_size: int, max_length: int) -> Any:
    """Train a byte-level BPE tokenizer of `vocab_size` tokens on the texts of Python's `help()`."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(pydoc_data.topics.topics.values(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL_TOKENS[1:7],
        model_max_length=max_length,
        chat_template=CHAT_TEMPLATE,
    )


def build_model(tokenizer: Any, max_length: int, seed: int) -> Any:
    """A `Qwen3_5ForCausalLM` in bfloat16: hidden 128, four layers of which the last has full attention."""
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(seed)
    config = Qwen3_5TextConfig(
        # Engines split the vocabulary in multiples of 64.
        vocab_size=(len(tokenizer) + 63) // 64 * 64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        max_position_embeddings=max_length,
        rope_parameters={"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    model = Qwen3_5ForCausalLM(config).to(torch.bfloat16).eval()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="folder to write; must not exist")
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--max-length", type=int, default=4096, help="max_position_embeddings")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    refuse_existing(args.out)
    tokenizer = build_tokenizer(args.vocab_size, args.max_length)
    save(build_model(tokenizer, args.max_length, args.seed), tokenizer, args.out)


if __name__ == "__main__":
    main()
