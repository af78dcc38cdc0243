# frozen_string_literal: true

# Mocks alias methods by names that are used once (ruby/mspec#67). The classes are garbage, but a name that was a method's
# stays for ever.

require_relative "../lib/scenario"

def mock(number)
  Object.new.singleton_class.alias_method(:"mock_#{number}_of_to_s", :to_s)
end

Scenario.run do |scale|
  count = (400_000 * scale).ceil
  count.times { |number| mock(number) }
  { symbols: count }
end
