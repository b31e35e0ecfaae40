job "web" {
  group "api" {
    task "server" {
      driver = "dokcer"
      config {
        command = "/bin/true"
      }
    }
  }
}
