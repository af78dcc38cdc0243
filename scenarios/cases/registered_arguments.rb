# frozen_string_literal: true

# An extension registers the arguments of each callback with rb_gc_register_address, and unregisters them when the callback returns. One
# that raises an exception never returns there: the interpreter retains its arguments for ever (sparklemotion/nokogiri#2097).

require "fiddle"
require_relative "../lib/scenario"

# The arguments of a callback.
class Argument
  def initialize(number)
    @text = "argument #{number} ".ljust(3000, "a")
  end
end

# What such an extension does.
module Extension
  LIBRUBY = Fiddle::Handle::DEFAULT
  REGISTER = Fiddle::Function.new(LIBRUBY["rb_gc_register_address"], [Fiddle::TYPE_VOIDP], Fiddle::TYPE_VOID)

  def self.call(argument)
    arguments = Fiddle::Pointer.malloc(Fiddle::SIZEOF_VOIDP)
    arguments[0, Fiddle::SIZEOF_VOIDP] = [Fiddle.dlwrap(argument)].pack("J")
    REGISTER.call(arguments)
    raise "no such function"
  end
end

def step(count)
  count.times do |number|
    Extension.call(Argument.new(number))
  rescue RuntimeError
    # The page goes on without the function.
  end
  {}
end

Scenario.run(commands: { "step" => -> { step(4000) } }) do |scale|
  count = (20_000 * scale).ceil
  step(count)
  GC.start
  { objects: ObjectSpace.each_object(Argument).count }
end
