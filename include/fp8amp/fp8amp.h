// Everything public. Needs neither CUDA, torch nor Python.
#pragma once
#include <fp8amp/adam.h>
#include <fp8amp/build_info.h>
#include <fp8amp/device.h>
#include <fp8amp/dtype.h>
#include <fp8amp/error.h>
#include <fp8amp/fused.h>
#include <fp8amp/gemm.h>
#include <fp8amp/norm.h>
#include <fp8amp/parallel.h>
#include <fp8amp/quantize.h>
#include <fp8amp/recipe.h>
#include <fp8amp/scaled_tensor.h>
#include <fp8amp/shards.h>
#include <fp8amp/tensor.h>
