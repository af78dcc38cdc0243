# frozen_string_literal: true

class Order < ApplicationRecord
  PER_PAGE = 25

  belongs_to :customer
  has_many :items

  scope :newest_first, -> { order(placed_at: :desc) }
  scope :page, ->(number) { limit(PER_PAGE).offset((number - 1) * PER_PAGE) }
  scope :of_month, ->(month) { where(placed_at: Time.utc(2025, month).all_month).order(:placed_at) }

  def self.pages
    (count / PER_PAGE.to_f).ceil
  end

  def cents
    items.sum(&:cents)
  end
end
