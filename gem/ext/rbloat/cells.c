#include "rbloat.h"
void rbloat_init_cells(VALUE rbloat) { (void)rbloat; }
