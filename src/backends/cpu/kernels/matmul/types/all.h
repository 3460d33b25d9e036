// Every weight type the matmul kernels know.
#pragma once
#include "backends/cpu/kernels/matmul/types/floats.h"
#include "backends/cpu/kernels/matmul/types/iq4_nl.h"
#include "backends/cpu/kernels/matmul/types/q2_k.h"
#include "backends/cpu/kernels/matmul/types/q3_k.h"
#include "backends/cpu/kernels/matmul/types/q4_0.h"
#include "backends/cpu/kernels/matmul/types/q4_k.h"
#include "backends/cpu/kernels/matmul/types/q5_0.h"
#include "backends/cpu/kernels/matmul/types/q6_k.h"
#include "backends/cpu/kernels/matmul/types/q8_0.h"
