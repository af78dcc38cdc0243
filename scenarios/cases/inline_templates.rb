# frozen_string_literal: true

# Each render of an inline template compiles a method that is never undefined (archivesspace/archivesspace#3508,
# rails/rails#35372): a leak of bytecode. The request "step" renders more of them.

require_relative "../lib/scenario"

module Views
  module Compiled; end

  def self.render_inline(source, number)
    name = "_inline_template_#{number}"
    body = source.each_line.map { |line| "out << #{line.chomp.inspect}; out << (n * 3).to_s\n" }.join
    Compiled.class_eval("def #{name}(n)\n out = +''\n#{body} out\nend", "inline template", 1)
    Object.new.extend(Compiled).public_send(name, number)
  end
end

TEXT = Array.new(40) { |row| "<li>row #{row}</li>" }.join("\n")
RENDERS = 300
rendered = 0
render = lambda do |count|
  count.times { Views.render_inline(TEXT, rendered += 1) }
  { iseqs: rendered }
end

Scenario.run(commands: { "step" => -> { render.(RENDERS) } }) do |scale|
  render.((RENDERS * scale).ceil)
end
