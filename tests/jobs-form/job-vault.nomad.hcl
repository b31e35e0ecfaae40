job "job-vault" {
  vault {
    role = "job"
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
    task "u" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      vault {
        role = "own"
      }
    }
  }
}
