# frozen_string_literal: true

# Code that is evaluated again and again, and that nothing retains: its bytecode is garbage. The request "step" evaluates more.

require_relative "../lib/scenario"

CODE = Array.new(60) { |line| "value = number.to_s + 'text #{line}' if number > #{line}" }.join("\n")
evaluate = lambda do
  GC.disable
  400.times { |number| binding.eval("number = #{number}\n#{CODE}", "rules.rb", 1) }
  GC.enable
  {}
end

Scenario.run(commands: { "step" => evaluate }, settle: false) do |_|
  evaluate.call
end
