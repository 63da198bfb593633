/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Errors on request. README.md describes the files "faults" and "gpu<n>/lost".
 */
#ifndef NVML_SIM_FAULTS_H
#define NVML_SIM_FAULTS_H

#include "abi.h"

/* "= SUCCESS": to answer NVML_SUCCESS and do nothing, as a driver that says yes and does no. Only functions that change
 * something get it; a getter would have to answer something. */
#define SIM_FAULT_SUCCESS ((nvmlReturn_t)0xFFFFFFFFU)

/* What the state wants this call of an exported function to answer instead of its own answer; NVML_SUCCESS: nothing.
 * Counts the call, so ask once for each. `gpu` is the folder's number, or SIM_SYSTEM where no GPU is meant. */
nvmlReturn_t sim_fault(const char *function, int gpu);
/* Only whether the GPU has fallen off the bus: for the second GPU of a call. */
nvmlReturn_t sim_lost(int gpu);

#endif
