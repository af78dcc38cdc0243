# frozen_string_literal: true

require "objspace"
require_relative "malloc"
require_relative "scenario"

# What keeps all that the scenarios of owners make: a Hash of Arrays.
module Cache
  STORE = {}
end

# Makes objects that hold memory outside of their slots, and measures with malloc's own count how much that is.
module Owners
  # In each Array of the store. Marking one with a million would grow the GC's own stack by as many words.
  PART = 1_000

  @truth = []

  class << self
    # Runs a scenario: the block, given the scale, makes the objects. More facts may be returned by it.
    def run(expect: "native.held")
      Scenario.run(expect: expect) do |scale|
        facts = yield(scale)
        memsize = @truth.to_h { |fact| [fact[:owner], ObjectSpace.memsize_of_all(Object.const_get(fact[:owner]))] }
        { owners: @truth, memsize: memsize }.merge(facts.is_a?(Hash) ? facts : {})
      end
    end

    # Keeps +count+ objects in Cache::STORE, each the block's for its index, and takes down what they hold.
    # +shared_with+: owners that pointers lead from to the same memory, so that a part may be found to be theirs. +free+:
    # what frees an object's memory, if the GC does not.
    def keep(count, shared_with: [], free: nil, &make)
      count = [count.round, 1].max
      parts = Array.new(count.fdiv(PART).ceil) { |part| Array.new([PART, count - part * PART].min) }
      parts.each { |part| Cache::STORE[Cache::STORE.size] = part }
      by = %w[Cache::STORE Hash Array]
      measure(count, by, shared_with: shared_with, free: free, make: make) do |index, object|
        parts[index / PART][index % PART] = object
      end
    end

    # As keep, for objects that the block is to keep, given the index and the object: +by+ tells in which way, from the
    # root on.
    def measure(count, by, make:, shared_with: [], free: nil)
      @bytes_of_page ||= bytes_of_page
      owner = class_of_dropped([count / 10, 10].max, free, &make)
      3.times { GC.start }
      before = ObjectSpace.count_objects
      bytes = growth { repeat(count) { |index| yield(index, make.call(index)) } }
      @truth << {
        owner: owner.name, **slots(owner), native_bytes: bytes, shared_with: shared_with,
        path: [*by, owner.name], beside: more_than(before, count / 10)
      }
    end

    private

    # Makes some objects and drops them, so that what a library makes once is no part of the measure; returns their
    # class. In a fiber, whose stack is gone with the words on it that name them; a thread would have its own arena.
    def class_of_dropped(count, free)
      Fiber.new do
        objects = Array.new(count) { |index| yield(index) }
        objects.each(&free) if free
        objects.first.class
      end.resume
    end

    # Ruby says how large a slot is since they differ, from 3.2 on.
    def slots(owner)
      objects = ObjectSpace.each_object(owner)
      each = JSON.parse(ObjectSpace.dump(objects.first))["slot_size"] || 40
      { objects: objects.count, slot_bytes: objects.count * each }
    end

    # How much more is in use after the block, but for what Ruby keeps for each further page of its heap.
    def growth(&block)
      pages = -page_count
      bytes = Malloc.growth(&block)
      [bytes - (page_count + pages) * @bytes_of_page, 0].max
    end

    # By experiment, with objects that need no malloc at all; in a fiber, as above.
    def bytes_of_page
      Fiber.new do
        parts = Array.new(100) { Array.new(PART) }
        pages = -page_count
        bytes = Malloc.growth { repeat(parts.size) { |part| parts[part].fill { Object.new } } }
        parts.clear
        bytes / (page_count + pages)
      end.resume
    end

    def page_count
      GC.stat(:heap_allocated_pages)
    end

    # The GC runs at set times, and always marks all: a minor one, which begins with the Arrays that were written to,
    # would grow its stack by a word for each of their members.
    def repeat(count)
      GC.disable
      count.times do |index|
        yield(index)
        GC.start if (index + 1) % count.fdiv(10).ceil == 0
      end
    ensure
      GC.enable
    end

    # The types of which there are so many more objects now: those measured, and what may hold a part of the bytes.
    def more_than(before, few)
      now = ObjectSpace.count_objects
      more = now.to_h { |type, count| [type, count - before.fetch(type, 0)] }
      more.select { |type, count| count > [few, 100].max && !%i[TOTAL FREE].include?(type) }
    end
  end
end
