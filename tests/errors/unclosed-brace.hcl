job "web" {
  group "app" {
