# frozen_string_literal: true

# A template gets its variables as singleton methods of an object (nanoc/nanoc#1076). In Ruby 3.0 to 3.2, each call in bytecode retains
# the method that it found last (ruby/ruby#7322), so the object that has the method lives as long as the template. The request "step"
# renders more templates.

require_relative "../lib/scenario"

# The variables of a template.
class Context
  def initialize(variables)
    variables.each { |name, value| define_singleton_method(name) { value } }
  end
end

# The compiled templates.
module Pages
  @count = 0

  class << self
    # Each template has a line of its own that calls the method.
    def render(count)
      count.times do
        @count += 1
        module_eval("def self.page_#{@count}(context)\n  context.title.size\nend", "pages/#{@count}.erb", 1)
        public_send("page_#{@count}", Context.new({ title: "t" * 200_000 }))
      end
    end
  end
end

def step
  # In a thread, because its stack disappears.
  Thread.new { Pages.render(100) }.join
  3.times { GC.start }
  # Later releases have freed them.
  { objects: ObjectSpace.each_object(Context).count }
end

Scenario.run(commands: { "step" => method(:step) }) do |scale|
  Thread.new { Pages.render((500 * scale).ceil) }.join
  step.merge(lines: { Context: Context.instance_method(:initialize).source_location.last + 1 })
end
