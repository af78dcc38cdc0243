# frozen_string_literal: true

# A quantity of a product: one line of an order.
class Item < ApplicationRecord
  belongs_to :order
  belongs_to :product

  def cents
    quantity * product.price_cents
  end
end
