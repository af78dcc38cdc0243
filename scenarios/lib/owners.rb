# frozen_string_literal: true

require "objspace"
require_relative "malloc"
require_relative "scenario"

# The root that retains all objects of the scenarios of owners: a Hash of Arrays.
module Cache
  STORE = {}
end

# Creates objects that hold memory outside their slots, and measures that memory by malloc's own count.
module Owners
  # Objects in each Array of the store. To mark an Array of a million objects, the GC's stack would grow by a million
  # words.
  PART = 1_000

  @truth = []

  class << self
    # Runs a scenario. The block gets the scale, creates the objects, and may return more facts.
    def run
      Scenario.run do |scale|
        facts = yield(scale)
        memsize = @truth.to_h { |fact| [fact[:owner], ObjectSpace.memsize_of_all(Object.const_get(fact[:owner]))] }
        { owners: @truth, memsize: memsize }.merge(facts.is_a?(Hash) ? facts : {})
      end
    end

    # Keeps +count+ objects in Cache::STORE, and measures what they hold. The block creates the object with an index.
    # +shared_with+: owners with pointers to the same memory, under which rbloat may list a part of it. +free+: frees an
    # object's memory if the GC does not.
    def keep(count, shared_with: [], free: nil, &make)
      count = [count.round, 1].max
      parts = Array.new(count.fdiv(PART).ceil) { |part| Array.new([PART, count - part * PART].min) }
      parts.each { |part| Cache::STORE[Cache::STORE.size] = part }
      by = %w[Cache::STORE Hash Array]
      measure(count, by, shared_with: shared_with, free: free, make: make) do |index, object|
        parts[index / PART][index % PART] = object
      end
    end

    # As keep, but the block keeps the objects; it gets the index and the object. +by+ is the retaining path from the
    # root.
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

    # Creates some objects and drops them, so that memory that a library allocates once is not measured. Returns their
    # class. In a fiber, because its stack disappears with all stale words; a thread would have its own arena.
    def class_of_dropped(count, free)
      Fiber.new do
        objects = Array.new(count) { |index| yield(index) }
        objects.each(&free) if free
        objects.first.class
      end.resume
    end

    # Since Ruby 3.2 slots have different sizes, and Ruby reports them.
    def slots(owner)
      objects = ObjectSpace.each_object(owner)
      each = JSON.parse(ObjectSpace.dump(objects.first))["slot_size"] || 40
      { objects: objects.count, slot_bytes: objects.count * each }
    end

    # Returns the increase of memory in use during the block, without what Ruby needs for new heap pages.
    def growth(&block)
      bytes, pages = growth_and_pages(&block)
      [bytes - pages * @bytes_of_page, 0].max
    end

    # Ruby 2.7 frees pages in the collections before the first measurement, so they are counted after these.
    def growth_and_pages
      pages = 0
      bytes = Malloc.growth do
        pages = -page_count
        yield
      end
      [bytes, pages + page_count]
    end

    # Measured with objects that need no malloc; in a fiber, as above.
    def bytes_of_page
      Fiber.new do
        parts = Array.new(100) { Array.new(PART) }
        bytes, pages = growth_and_pages { repeat(parts.size) { |part| parts[part].fill { Object.new } } }
        parts.clear
        bytes / pages
      end.resume
    end

    def page_count
      GC.stat(:heap_allocated_pages)
    end

    # Runs only full collections, at fixed points. A minor one starts with the Arrays that were written to, and would
    # grow the GC's stack by a word for each of their members.
    def repeat(count)
      GC.disable
      count.times do |index|
        yield(index)
        GC.start if (index + 1) % count.fdiv(10).ceil == 0
      end
    ensure
      GC.enable
    end

    # Returns the types with many new objects: those measured, and others that may hold a part of the bytes.
    def more_than(before, few)
      now = ObjectSpace.count_objects
      more = now.to_h { |type, count| [type, count - before.fetch(type, 0)] }
      more.select { |type, count| count > [few, 100].max && !%i[TOTAL FREE].include?(type) }
    end
  end
end
