# frozen_string_literal: true

# Garbage that is not collected yet, to which only weak references lead: as keys and values of the tables that Ruby has for
# instance variables of strings, finalizers, object ids, and weak maps. Beside it live objects in the same tables.

require_relative "../lib/scenario"

# Nothing retains objects of these classes.
module Dead
  Variables = Class.new(String)
  VariableValue = Class.new(String)
  Finalized = Class.new(String)
  Identified = Class.new(String)
  MapKey = Class.new(String)
  MapValue = Class.new(String)
  KeyMapKey = Class.new(String)
  KeyMapValue = Class.new(String)
end

# Objects of these classes are retained.
module Alive
  Variables = Class.new(String)
  VariableValue = Class.new(String)
  KeyMapKey = Class.new(String)
  KeyMapValue = Class.new(String)
  Wrapped = Class.new(String)

  # A value that refers to its own key: the map keeps both.
  class Wrapper
    def initialize(key)
      @key = key
    end
  end
end

STORE = []
MAP = ObjectSpace::WeakMap.new
# From Ruby 3.3 on.
HAS_KEY_MAP = ObjectSpace.const_defined?(:WeakKeyMap)
KEY_MAP = HAS_KEY_MAP ? ObjectSpace::WeakKeyMap.new : nil
FINALIZER = ->(_) {}
BYTES = 2_000

# Returns a string with memory of its own; a copy would share it. Its beginning differs from all others.
def make(owner)
  owner.new(capacity: BYTES).concat(rand.to_s.ljust(BYTES - 1, "x"))
end

def with_variable(owner, value)
  make(owner).tap { |object| object.instance_variable_set(:@value, make(value)) }
end

def make_garbage
  with_variable(Dead::Variables, Dead::VariableValue)
  ObjectSpace.define_finalizer(make(Dead::Finalized), FINALIZER)
  make(Dead::Identified).object_id
  MAP[make(Dead::MapKey)] = make(Dead::MapValue)
  KEY_MAP[make(Dead::KeyMapKey)] = make(Dead::KeyMapValue) if HAS_KEY_MAP
end

def make_live_objects
  STORE << with_variable(Alive::Variables, Alive::VariableValue)
  return unless HAS_KEY_MAP

  key = make(Alive::KeyMapKey)
  STORE << key
  KEY_MAP[key] = make(Alive::KeyMapValue)
  wrapped = make(Alive::Wrapped)
  KEY_MAP[wrapped] = Alive::Wrapper.new(wrapped)
end

Scenario.run(settle: false) do |scale|
  GC.start
  GC.disable
  # In a thread of its own, because its stack disappears.
  Thread.new do
    (2_000 * scale).ceil.times do
      make_garbage
      make_live_objects
    end
  end.join
  { has_key_map: HAS_KEY_MAP }
end
