# frozen_string_literal: true

class OrdersController < ApplicationController
  JSON_PARTS = [:customer, { items: { include: :product } }].freeze

  def index
    @page = [params.fetch(:page, 1).to_i, 1].max
    @orders = Order.newest_first.page(@page).includes(:customer, items: :product)
    respond_to do |format|
      format.html { @pages = Order.pages }
      format.json { render json: @orders.as_json(methods: :cents, include: JSON_PARTS) }
    end
  end

  def show
    @order = Order.includes(:customer, items: :product).find(params[:id])
    @others = @order.customer.orders.newest_first.where.not(id: @order.id).limit(10)
  end
end
