job "web" {
  group "app" {
  }
}
