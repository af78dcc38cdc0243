# frozen_string_literal: true

Shop::Application.routes.draw do
  root "orders#index"
  resources :orders, only: %i[index show]
  # All orders of a month of 2025: /exports/12.csv
  resources :exports, only: :show, constraints: { id: /[1-9]|1[0-2]/, format: "csv" }
end
