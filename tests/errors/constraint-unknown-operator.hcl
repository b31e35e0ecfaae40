job "web" {
  group "api" {
    constraint {
      attribute = "${attr.kernel.name}"
      operator  = "equals"
      value     = "linux"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
