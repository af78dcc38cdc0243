# frozen_string_literal: true

# So many of a product, as a line of an order.
class Item < ApplicationRecord
  belongs_to :order
  belongs_to :product

  def cents
    quantity * product.price_cents
  end
end
