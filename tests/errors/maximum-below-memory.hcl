job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      resources {
        memory     = 512
        memory_max = 256
      }
    }
  }
}
