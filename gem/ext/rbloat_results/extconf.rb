# frozen_string_literal: true

require "mkmf"

# A missing header or function disables a part of the extension. It never stops the installation.
have_header("dlfcn.h")
have_library("dl", "dlsym") unless have_func("dlsym", "dlfcn.h")
have_func("rb_ext_ractor_safe", "ruby.h")
have_func("rb_gc_adjust_memory_usage", "ruby.h")

# For dladdr.
append_cppflags("-D_GNU_SOURCE")
append_cflags(%w[-std=gnu11 -Wall -Wno-unused-parameter -fvisibility=hidden])
create_makefile("rbloat/results/rbloat_results")
