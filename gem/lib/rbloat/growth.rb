# frozen_string_literal: true

# Growth by controller action and job class.
module Rbloat
  # By how much requests and jobs make the process grow: a table with a row for each controller action and job class.
  #
  # Requests are sampled so that measuring takes at most a fixed share of the time. What other threads allocate during
  # a request is included, so a row means something only after many samples.
  # @api private
  class Growth
    # The share of the time that measuring may take.
    SHARE = 0.005
    # The seconds that may be saved up for busier times.
    MAX_CREDIT = 0.1
    # The CPU seconds that counting malloc's memory may take. It holds the locks of the arenas, and takes long if there
    # are millions of free chunks; after one count that took longer there is no other.
    LONGEST_COUNT = 0.002
    # The number of rows. Names beyond that are dropped.
    MAX_ROWS = 1_000
    FIGURES = %i[rss_bytes malloc_bytes slots objects].freeze

    Row = Struct.new(:requests, :samples, *FIGURES)
    private_constant :Row

    # @param clock [#call] returns seconds
    # @param cpu_clock [#call] returns the CPU seconds of the thread
    def initialize(clock: -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) },
                   cpu_clock: -> { Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) })
      @clock = clock
      @cpu_clock = cpu_clock
      reset
    end

    # Drops all rows, as in a forked process.
    def reset
      @lock = Mutex.new
      @counts_malloc = true
      @rows = {}
      @spent = 0.0
      @since = @clock.call
    end

    # Measures the block, if it is its turn.
    def measure(name)
      before = start
      yield
    ensure
      finish(name, before)
    end

    # @return [Array<Integer>, nil] the figures at the start of a request; nil if it is not to be measured
    def start
      earned = SHARE * (@clock.call - @since)
      # Time in which no request was measured counts only in part.
      @spent = [@spent, earned - MAX_CREDIT].max
      figures if @spent <= earned
    end

    # @param before the result of {#start}
    def finish(name, before)
      grown = before && growth_since(before)
      @lock.synchronize do
        row = row_of(name) or return
        row.requests += 1
        next unless grown

        row.samples += 1
        FIGURES.zip(grown) { |figure, value| row[figure] += value }
      end
    end

    # @return [Array<Hash{Symbol => Object}>] the rows by which RSS grew most in total, the largest first. The figures
    #   are means of the samples
    def top(count)
      rows = @lock.synchronize { @rows.transform_values(&:dup) }
      rows.select! { |_name, row| row.samples.positive? }
      rows.map { |name, row| describe(name, row) }.max_by(count) { |row| row[:rss_bytes] * row[:requests] }
    end

    private

    def row_of(name)
      @rows[name] || (@rows.size < MAX_ROWS ? @rows[name] = Row.new(*([0] * Row.members.size)) : nil)
    end

    def describe(name, row)
      means = FIGURES.to_h { |figure| [figure, row[figure].fdiv(row.samples).round] }
      means[:malloc_bytes] = nil unless @counts_malloc
      { name: name, requests: row.requests, samples: row.samples, **means }
    end

    def growth_since(before)
      figures.zip(before).map { |now, was| now && was ? now - was : 0 }
    end

    # In the order of FIGURES.
    def figures
      started = @clock.call
      [Rbloat.rss_bytes || 0, malloc_bytes, GC.stat(:heap_available_slots), GC.stat(:total_allocated_objects)]
    ensure
      @spent += @clock.call - started
    end

    def malloc_bytes
      return unless @counts_malloc

      started = @cpu_clock.call
      in_use, = Malloc.counts
      @counts_malloc = false if in_use.nil? || @cpu_clock.call - started > LONGEST_COUNT
      in_use
    end

    # Measures the actions of Rails' controllers.
    class Subscriber
      def initialize(growth)
        @growth = growth
      end

      def start(_name, _id, _payload)
        Thread.current[:rbloat_growth] = @growth.start
      end

      def finish(_name, _id, payload)
        @growth.finish("#{payload[:controller]}##{payload[:action]}", Thread.current[:rbloat_growth])
        Thread.current[:rbloat_growth] = nil
      end
    end
  end
  private_constant :Growth

  @requests = Growth.new

  class << self
    # Returns by how much requests and jobs made the process grow, by controller action and job class: those by which
    # RSS grew most in total, the largest first. The keys are `name`, the number of `requests` and of `samples`, and the
    # means of the samples: growth of RSS (`rss_bytes`), of malloc's memory in use (`malloc_bytes`; nil with another
    # malloc, and if it takes long to count) and of the number of slots in Ruby's heap (`slots`), and new objects
    # (`objects`), most of which are garbage afterwards. What other threads did in the meantime is included.
    #
    # If `config.growth` is true, actions of Rails' controllers are measured after {start} in a Rails application, and
    # jobs after `require "rbloat/sidekiq"`.
    #
    # @param count [Integer]
    # @return [Array<Hash{Symbol => Object}>]
    def growth(count = 20)
      @requests.top(count)
    end

    private

    def forget_growth
      @requests.reset
    end

    def measure_growth(name, &block)
      configuration.growth ? @requests.measure(name, &block) : yield
    end
  end
end
