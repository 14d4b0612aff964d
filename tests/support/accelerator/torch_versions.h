// Where versions of torch differ, 2.11 to 2.13: all of it is here.
//
//   2.13         tried
//   2.11, 2.12   read only: the classes of c10 may lack the functions marked below
#pragma once

// torch.accelerator.Graph, and what a device gives for it: from 2.13 on.
#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define STANDIN_HAS_GRAPHS
#endif

// Instead of `override`, where older classes may have no such function: it is one of its own there, never called.
#define STANDIN_OVERRIDE_IF_ANY
