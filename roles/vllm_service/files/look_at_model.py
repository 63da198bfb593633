# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print, as JSON, what a model's folder has, seen with the eyes of the user that will serve it.

usage: look_at_model.py FOLDER USER    (as root; before that user exists, a user without rights stands in)
"""

from __future__ import annotations

import json
import os
import pwd
import sys


def become(name):
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        user = pwd.getpwnam("nobody")
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def read(folder, name):
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def look(folder):
    found = {"closed": False, "files": [], "config": False, "shards": [], "chat_template": False}
    try:
        names = sorted(os.listdir(folder))
    except PermissionError:
        return dict(found, closed=True)
    for name in names:
        path = os.path.join(folder, name)
        try:
            size = os.stat(path).st_size
        except OSError:
            # A link that leads nowhere is as good as no file.
            continue
        if os.path.isfile(path):
            found["files"].append({"name": name, "size": size, "readable": os.access(path, os.R_OK)})
    found["config"] = read(folder, "config.json") is not None
    found["chat_template"] = bool((read(folder, "tokenizer_config.json") or {}).get("chat_template"))
    if "model.safetensors.index.json" in names:
        weight_map = (read(folder, "model.safetensors.index.json") or {}).get("weight_map")
        found["shards"] = sorted(set(weight_map.values())) if isinstance(weight_map, dict) else None
    return found


def main(folder, user):
    exists = os.path.isdir(folder)
    become(user)
    empty = {"closed": False, "files": [], "config": False, "shards": [], "chat_template": False}
    print(json.dumps(dict(look(folder) if exists else empty, exists=exists)))


main(*sys.argv[1:])
