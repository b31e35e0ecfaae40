job "group-vault" {
  group "g" {
    vault {
      role = "group"
      namespace = "n"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
