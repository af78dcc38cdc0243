# frozen_string_literal: true

# For `rake stress`: while a method of the gem runs, each allocation in any thread runs the GC.
module Stress
  # Modules that have been wrapped. Classes of pg and mysql2 are defined later than the others.
  WRAPPED = {} # rubocop:disable Style/MutableConstant

  # Modules that run or are run by other programs' code.
  LEFT_ALONE = %w[Rbloat::Railtie].freeze

  METHOD = <<~'RUBY'
    def %<name>s(...)
      return super(...) if Thread.current[:rbloat_stress] || GC.stress

      Thread.current[:rbloat_stress] = true
      GC.stress = true
      begin
        super(...)
      ensure
        GC.stress = false
        Thread.current[:rbloat_stress] = nil
      end
    end
    %<visibility>s :%<name>s
  RUBY

  class << self
    # Wraps the methods of a module, of its singleton class, and of the modules in it.
    def wrap(container)
      return if LEFT_ALONE.include?(container.name)

      [container, container.singleton_class].each { |owner| wrap_methods(owner) } unless WRAPPED[container]
      WRAPPED[container] = true
      container.constants(false).map { |name| container.const_get(name) }.grep(Module).each { |inner| wrap(inner) }
    end

    private

    # As text, since other Ractors cannot call a method that was defined by a block.
    def wrap_methods(owner)
      wrapper = Module.new
      %i[public private].each do |visibility|
        owner.public_send("#{visibility}_instance_methods", false).each do |name|
          wrapper.module_eval(format(METHOD, name: name, visibility: visibility))
        end
      end
      owner.prepend(wrapper)
    end
  end
end
