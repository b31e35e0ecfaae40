job "web" {
  group "app" {
    volume "data" {
      type   = "host"
      source = "data"
    }
    task "server" {
      driver = "exec"
      volume_mount {
        volume      = "dta"
        destination = "/data"
      }
    }
  }
}
