job "group-consul" {
  group "g" {
    consul {
      namespace = "n"
      partition = "p"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
