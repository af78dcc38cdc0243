# frozen_string_literal: true

# What the programs of this folder share: much garbage beside what they keep, and rounds that a test waits for.
module Load
  # A heap like that of a server: a collection takes longer, and comes less often.
  BALLAST = Array.new(Integer(ENV.fetch("BALLAST", "50000"))) { |i| ["b#{i}"] }
  ROUNDS = [0]

  def self.garbage
    Array.new(300) { |i| "item #{i} " * 4 }.join.size
    (1..300).sum { |i| { id: i, name: "n#{i}" }[:id] }
  end

  # Code gets a new object, and looks at it before it is kept.
  def self.check(object)
    sum = 0
    60.times { |index| sum += index }
    object && sum
  end

  # Works for ever. For each line on the standard input, it prints when so many more rounds are done.
  def self.run(threads: 2)
    4.times { GC.start }
    Array.new(threads) { Thread.new { loop { ROUNDS[0] += 1; yield ROUNDS[0]; garbage } } }
    puts "ready {}"
    $stdout.flush
    while (line = $stdin.gets)
      goal = ROUNDS[0] + Integer(line)
      sleep 0.01 until ROUNDS[0] >= goal
      puts "ready {\"rounds\": #{ROUNDS[0]}}"
      $stdout.flush
    end
    exit!(0)
  end
end
