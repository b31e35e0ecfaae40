job "web" {
  group "api" {
    volume "data" {
      type   = "nfs"
      source = "data"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
