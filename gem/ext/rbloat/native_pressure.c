#include "rbloat.h"
void rbloat_init_native_pressure(VALUE rbloat) { (void)rbloat; }
