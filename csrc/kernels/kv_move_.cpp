#include "kernels/kv_move_.h"

namespace aegis::kernels {

namespace scalar {
void kv_move(const KvMove&, int64_t, int64_t);
}

KvMoveKernel kv_move_kernel(Isa) { return scalar::kv_move; }

}  // namespace aegis::kernels
