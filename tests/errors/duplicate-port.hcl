job "web" {
  group "app" {
    network {
      port "http" {}
      port "http" {}
    }
    task "server" {
      driver = "exec"
    }
  }
}
