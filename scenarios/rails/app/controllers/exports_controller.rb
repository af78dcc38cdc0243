# frozen_string_literal: true

# An export that the office requests once in a while. The table is built in memory, as in most applications.
class ExportsController < ApplicationController
  COLUMNS = %w[invoice placed_at status customer email street city note].freeze

  def show
    orders = Order.of_month(params[:id].to_i).includes(:customer).to_a
    send_data table(orders), type: :csv, filename: "orders-#{params[:id]}.csv"
  end

  private

  def table(orders)
    CSV.generate do |csv|
      csv << COLUMNS
      orders.each do |order|
        customer = order.customer
        csv << [order.invoice, order.placed_at.iso8601, order.status, customer.name, customer.email, customer.street,
                customer.city, order.note]
      end
    end
  end
end
