job "web" {
  group "app" {
    task "server" {
    }
  }
}
