# frozen_string_literal: true

# Each account is extended with the modules of its roles (data, context and interaction), so it has a singleton class and an include
# class for each module (ruby/ruby#3331). The request "clear" releases the accounts.

require_relative "../lib/scenario"

module Payer
  def pay; end
end

module Seller
  def sell; end
end

# Has two roles.
class Account
  def initialize(number)
    @number = number
    extend(Payer)
    extend(Seller)
  end
end

# Keeps all accounts that were used.
module Bank
  ACTIVE = {}
end

clear = lambda do
  Bank::ACTIVE.clear
  4.times { GC.start }
  { accounts: ObjectSpace.each_object(Account).count }
end

Scenario.run(commands: { "clear" => clear }) do |scale|
  count = (45_000 * scale).ceil
  count.times { |number| Bank::ACTIVE[number] = Account.new(number) }
  { objects: count }
end
