/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#ifndef NVML_SIM_FIELDS_H
#define NVML_SIM_FIELDS_H

#include "abi.h"

/* Answer one field value: sets valueType, nvmlReturn and value. */
void sim_field(int gpu, nvmlFieldValue_t *field);

/* Things that fields and functions both answer. */
nvmlReturn_t sim_ecc(int gpu, unsigned int *current, unsigned int *pending);
/* NVML_ERROR_NOT_SUPPORTED where ECC is off: nothing is counted then. */
nvmlReturn_t sim_ecc_counts(int gpu);
/* All errors of one kind: those in DRAM and in SRAM. `folder` is "ecc/<counter>/<kind>". */
nvmlReturn_t sim_ecc_total(int gpu, const char *folder, uint64_t *count);
nvmlReturn_t sim_mig(int gpu, unsigned int *current, unsigned int *pending);
nvmlReturn_t sim_enforced_limit(int gpu, unsigned int *milliwatts);
unsigned int sim_link_count(int gpu);

#endif
