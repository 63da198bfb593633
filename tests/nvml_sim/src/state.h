/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Reading and writing the state directory. README.md describes its layout.
 *
 * A key is a path below the state directory, relative to a GPU's own folder where a GPU is given. "folder/file" is a
 * file with one value, "folder/file#name" a line "name = value" of a file.
 */
#ifndef NVML_SIM_STATE_H
#define NVML_SIM_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"

#define SIM_MAX_GPUS 64
/* A value longer than this is malformed. */
#define SIM_TEXT 4096
#define SIM_SYSTEM (-1)

/* The directory, fixed by the first init; the environment variable NVML_SIM_STATE overrides the built-in path. */
const char *sim_directory(void);
void sim_choose_directory(void);

/* NVML_ERROR_DRIVER_NOT_LOADED where there is no state directory. Else the numbers of its gpu<N> folders, in order. */
nvmlReturn_t sim_list_gpus(int numbers[SIM_MAX_GPUS], unsigned int *count);

/* Each answers: NVML_SUCCESS; the error that stands in the state instead of a value; NVML_ERROR_NOT_SUPPORTED where
 * the state has no such value; NVML_ERROR_UNKNOWN for a value that is no value of that kind. */
nvmlReturn_t sim_text(int gpu, const char *key, char *out, size_t size);
nvmlReturn_t sim_i64(int gpu, const char *key, int64_t *out);
nvmlReturn_t sim_u64(int gpu, const char *key, uint64_t *out);
nvmlReturn_t sim_u32(int gpu, const char *key, unsigned int *out);
nvmlReturn_t sim_i32(int gpu, const char *key, int *out);
/* The text as it stands there, also where it is an error. */
nvmlReturn_t sim_raw(int gpu, const char *key, char *out, size_t size);
/* The whole file, comments included. */
nvmlReturn_t sim_file(int gpu, const char *path, char *out, size_t size);

/* Write a value to where it belongs: below run/ what a reboot loses (LOST_AT_REBOOT in nvml_sim.py names the same keys),
 * everything else in the GPU's or the state's own folder. The file is replaced whole, under the lock that all writers
 * take, so that readers need none. NVML_ERROR_NO_PERMISSION where the caller may not write there. */
nvmlReturn_t sim_write(int gpu, const char *key, const char *value);
nvmlReturn_t sim_write_u64(int gpu, const char *key, uint64_t value);
/* Below run/ in any case: for what other cards keep. */
nvmlReturn_t sim_write_volatile(int gpu, const char *key, const char *value);
/* Take away what sim_write put there; a value that is not there is no error. */
nvmlReturn_t sim_remove(int gpu, const char *key);

/* The writers' lock, for what reads, decides and writes. It counts: sim_write may be called within. */
nvmlReturn_t sim_lock(void);
void sim_unlock(void);

/* Whether the caller is root, which everything that changes a card asks for. Only the state can say otherwise
 * (system/allow_users = 1), for tests that are not root. */
bool sim_may_change(void);

/* Parse a value's text the same way. */
nvmlReturn_t sim_parse_i64(const char *what, const char *text, int64_t *out);
nvmlReturn_t sim_parse_u64(const char *what, const char *text, uint64_t *out);
/* "!3" or "!NOT_SUPPORTED": the error; any other text: NVML_SUCCESS; a bad one: NVML_ERROR_UNKNOWN. */
nvmlReturn_t sim_parse_error(const char *what, const char *text);

/* To standard error, when NVML_SIM_DEBUG is set: why an answer is NVML_ERROR_UNKNOWN. */
void sim_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
