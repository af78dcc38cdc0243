# frozen_string_literal: true

# A program writes the code of each rule to a file with a name of its own, requires it, and keeps the lambda that it defines. No file is
# loaded twice. The request "step" adds rules.

require "tmpdir"
require_relative "../lib/scenario"

# The rules.
module Rules
  ALL = {}

  def self.add(folder)
    number = ALL.size
    file = "#{folder}/rule_#{number}.rb"
    lines = (1..40).map { |line| "  value_#{line} = order.to_s + \"rule #{number}, line #{line}\"\n" }
    File.write(file, "Rules::ALL[#{number}] = lambda do |order|\n#{lines.join}  value_1 + value_40\nend\n")
    require file
  end
end

def step(count)
  Dir.mktmpdir { |folder| count.times { Rules.add(folder) } }
  GC.start
  { rules: Rules::ALL.size }
end

Scenario.run(commands: { "step" => -> { step(1000) } }) { |scale| step((5000 * scale).ceil) }
